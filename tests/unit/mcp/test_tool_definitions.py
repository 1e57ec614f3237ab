"""The tools as they are listed: short, and of the shape that clients check."""

import json

import jsonschema
import pytest

from app.mcp import tool_definitions
from app.mcp.tool_arguments import FetchArguments, ListEnginesArguments, RetrieveArguments, SearchArguments

MODELS = {
    "retrieve": RetrieveArguments,
    "list_engines": ListEnginesArguments,
    "search": SearchArguments,
    "fetch": FetchArguments,
}


@pytest.mark.parametrize("tool", tool_definitions.TOOLS, ids=lambda tool: tool["name"])
def test_each_tool_is_described_and_only_reads(tool: tool_definitions.Json) -> None:
    """Name, title, description, hints, and two schemas of objects that are valid."""
    assert tool["title"]
    assert tool["description"]
    assert tool["annotations"]["readOnlyHint"] is True
    for schema in (tool["inputSchema"], tool["outputSchema"]):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"


@pytest.mark.parametrize("name", tool_definitions.NAMES)
def test_the_schema_is_what_is_read(name: str) -> None:
    """The listed arguments are those that are understood, with the same that must be there and the same defaults."""
    listed, model = tool_definitions.INPUTS[name], MODELS[name]
    assert set(listed["properties"]) == set(model.model_fields)
    needed = [field for field, info in model.model_fields.items() if info.is_required()]
    assert listed.get("required", []) == needed
    for field, shape in listed["properties"].items():
        if "default" in shape:
            assert model.model_fields[field].default == shape["default"]


def test_the_list_is_short() -> None:
    """A model reads all of it each time: it stays under 4 KB, the instructions under 600 bytes."""
    assert len(json.dumps(tool_definitions.TOOLS, separators=(",", ":"))) < 3600
    assert len(tool_definitions.INSTRUCTIONS) < 600
