"""The JSON Schema of the configuration files, and the tables of keys in docs/, both made from the models."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from app.settings.fields import file_name
from app.settings.schema import EngineEntry, GatewaySettings, Registry
from app.settings.tenants_file import TenantEntry, TenantsFile

PAGE = re.compile(r"\bdocs/([\w-]+)/([\w-]+)\.md(#[\w-]+)?")
"""A page of the documents that a description names: folder, page, section."""

Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
    "registry": (Registry, EngineEntry),
    "settings": (GatewaySettings, GatewaySettings),
    "tenants": (TenantsFile, TenantEntry),
}
"""What can be described: its model, and the model whose keys the table lists."""


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key of a file, in words: `default` is JSON, or `required`."""

    name: str
    type: str
    default: str
    meaning: str


def json_schema(document: str) -> Json:
    """The JSON Schema (draft 2020-12) of a document of DOCUMENTS, with what each key means and its default."""
    model, _ = DOCUMENTS[document]
    schema = model.model_json_schema(by_alias=True)
    for found in _models(model):
        node = schema if found is model else schema["$defs"][found.__name__]
        for field, meaning in meanings(found).items():
            node["properties"][file_name(found, field)]["description"] = meaning
        for field, info in found.model_fields.items():
            if info.is_required():
                continue
            default = info.get_default(call_default_factory=True)
            if not isinstance(default, BaseModel):
                node["properties"][file_name(found, field)]["default"] = default
    if model is GatewaySettings:  # a section of which every line is commented out is null, and empty
        for section, written in schema["properties"].items():
            schema["properties"][section] = {"anyOf": [written, {"type": "null"}]}
    return {"$schema": DIALECT, **schema}


def keys(document: str) -> list[SettingKey]:
    """Every key that the table of this document lists, in the order of the models."""
    schema = json_schema(document)
    _, top = DOCUMENTS[document]
    return list(_keys(schema, schema["$defs"].get(top.__name__, schema), ""))


def table(document: str) -> str:
    """The table of this document in Markdown, to stand in docs/."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys(document):
        default = key.default if key.default == "required" else f"`{key.default}`"
        meaning = PAGE.sub(r"[\2](../\1/\2.md\3)", key.meaning).removesuffix(".")
        lines.append(f"| `{key.name}` | {key.type} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text that stands under it in the source; read there, so that a start need not pay for it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[attr-defined]
    return found


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        for part in _parts(info.annotation):
            yield from _models(part)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _keys(schema: Json, node: Json, prefix: str) -> Iterator[SettingKey]:
    for name, written in node["properties"].items():
        property_ = _resolved(schema, written)
        is_section = "properties" in property_ and "default" not in written
        if not is_section:
            required = name in node.get("required", ())
            default = "required" if required else json.dumps(written.get("default"))
            yield SettingKey(prefix + name, _type(schema, property_), default, written.get("description", ""))
        if "properties" in property_:
            yield from _keys(schema, property_, f"{prefix}{name}.")
        elif "properties" in (item := _resolved(schema, property_.get("items", {}))):
            yield from _keys(schema, item, f"{prefix}{name}[].")


def _resolved(schema: Json, node: Json) -> Json:
    """What `node` refers to; that null will do as well does not matter."""
    (option,) = (option for option in node.get("anyOf", [node]) if option.get("type") != "null")
    reference = option.get("$ref")
    found: Json = schema["$defs"][reference.rpartition("/")[2]] if reference else option
    return found


def _type(schema: Json, node: Json) -> str:
    if "enum" in node or "const" in node:
        return ", ".join(f"`{word}`" for word in node.get("enum", [node.get("const")]))
    kind = node.get("type")
    if kind == "array":
        item = _resolved(schema, node["items"])
        held = "text" if item.get("type") == "string" and "enum" not in item else _type(schema, item)
        return f"list of {held}{_range(node, 'maxItems', None)}"
    if kind == "object":
        values = node.get("additionalProperties")
        return f"object of {_type(schema, _resolved(schema, values))}" if isinstance(values, dict) else "object"
    if kind == "string":
        return f"text{_range(node, 'maxLength', 'minLength')}"
    return {"integer": "whole number", "number": "number", "boolean": "boolean"}[str(kind)] + _bounds(node)


def _range(node: Json, most: str, least: str | None) -> str:
    if most not in node:
        return ""
    return f", {node[least]} to {node[most]}" if least in node else f", up to {node[most]}"


def _bounds(node: Json) -> str:
    low = f"{node['minimum']:.15g}" if "minimum" in node else ""
    if "exclusiveMinimum" in node:
        low = f"above {node['exclusiveMinimum']:.15g}"
    high = f"{node['maximum']:.15g}" if "maximum" in node else ""
    if low and high:
        return f", {low} to {high}"
    if low:
        return f", {low}" if low.startswith("above") else f", from {low}"
    return f", up to {high}" if high else ""
