"""What models send as arguments, and how faults in them are described."""

from typing import Any

import pytest

from app.mcp.tool_arguments import BadArguments, FetchArguments, ListEnginesArguments, RetrieveArguments, read


def test_defaults_are_those_that_are_listed() -> None:
    """A query alone is enough."""
    args = read(RetrieveArguments, {"query": "q"})
    assert args.model_dump(exclude_none=True) == {"query": "q", "k": 8, "raw": False}


def test_harmless_habits_are_forgiven() -> None:
    """Numbers in quotes, nulls, optional ones left empty, one engine without a list, an id that is a number."""
    args = read(RetrieveArguments, {"query": "q", "k": "3", "mode": None, "engines": "docs", "token_budget": 9.0})
    assert (args.k, args.engines, args.token_budget) == (3, ["docs"], 9)
    empty = read(RetrieveArguments, {"query": "q", "mode": "", "engines": [], "filter": {}, "k": ""})
    assert empty == read(RetrieveArguments, {"query": "q"})
    assert read(FetchArguments, {"id": 7}).id == "7"
    assert read(ListEnginesArguments, None) == ListEnginesArguments()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"query": ""}, "'query': string should have at least 1 character"),
        ({"query": "q", "unknown": ""}, "'unknown' is no argument of this tool"),
        ({"query": ["q"]}, "'query': input should be a valid string"),
        ({"query": "q", "engines": [1]}, "'engines.0': input should be a valid string"),
        ({"query": "q", "raw": "perhaps"}, "'raw': input should be a valid boolean"),
        ({"query": "q", "token_budget": 0}, "'token_budget': input should be greater than or equal to 1"),
        ({"query": "q", "x" * 200: 1}, f"'{'x' * 100}' is no argument of this tool"),
        ({str(number): 1 for number in range(99)}, "is no argument"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], expected: str) -> None:
    """The argument and what it should be; five faults at most, none of them long."""
    with pytest.raises(BadArguments) as fault:
        read(RetrieveArguments, given)
    assert expected in str(fault.value)
    assert len(str(fault.value)) < 1500
