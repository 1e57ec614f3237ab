"""The listed tools: short, with schemas that clients can check."""

import jsonschema
import pytest

from app.mcp import tool_arguments
from app.mcp.tool_definitions import NAMES, Json, ToolList, tool_list

MODELS = {
    "retrieve": tool_arguments.RetrieveArguments,
    "list_engines": tool_arguments.ListEnginesArguments,
    "search": tool_arguments.SearchArguments,
    "fetch": tool_arguments.FetchArguments,
    "feedback": tool_arguments.FeedbackArguments,
}


def listed(prefix: str = "", *, feedback: bool = True, structured: bool = True, about: str = "") -> ToolList:
    """The tools of a gateway whose engines have not been reached."""
    return tool_list("T", about, prefix, (), feedback=feedback, structured=structured)


TOOLS = {tool["name"]: tool for tool in listed().tools}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_each_tool_is_described(tool: Json) -> None:
    """Title, description, all four hints, and two valid schemas of objects; only `feedback` writes."""
    assert tool["title"]
    assert tool["description"]
    assert tool["annotations"]["readOnlyHint"] is (tool["name"] != "feedback")
    assert "openWorldHint" in tool["annotations"]
    for schema in (tool["inputSchema"], tool["outputSchema"]):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_what_is_read(name: str) -> None:
    """The listed arguments are those that are read (`raw` is not listed), with the same defaults and requirements."""
    schema, model = TOOLS[name]["inputSchema"], MODELS[name]
    assert set(schema["properties"]) == set(model.model_fields) - {"raw"}
    needed = [field for field, info in model.model_fields.items() if info.is_required()]
    assert schema.get("required", []) == needed
    for field, shape in schema["properties"].items():
        assert shape.get("description")
        if "default" in shape:
            assert model.model_fields[field].default == shape["default"]


def test_texts_are_short() -> None:
    """A model reads all descriptions each time; the instructions stay under 700 bytes."""
    assert sum(len(tool["description"]) for tool in TOOLS.values()) < 700
    assert len(listed().instructions) < 800


def test_a_prefix_is_everywhere() -> None:
    """Names, and the mentions of other tools in descriptions and instructions."""
    tools = listed("docs_", about="Manuals.")
    assert list(tools.names) == [f"docs_{name}" for name in NAMES]
    assert list(tools.names.values()) == list(NAMES)
    assert tools.tools[0]["description"].startswith("Manuals. ")
    assert "`docs_fetch`" in tools.tools[0]["description"]
    assert tools.instructions.startswith("Manuals. ")
    assert "`docs_retrieve`" in tools.instructions


def test_what_is_not_offered_is_not_listed() -> None:
    """`feedback` needs its role; output schemas promise structured content, so without it there is none."""
    tools = listed(feedback=False, structured=False)
    assert "feedback" not in tools.names
    assert not any("outputSchema" in tool for tool in tools.tools)
