"""Filter trees of demo engines: what they mean and what is refused."""

from typing import Any

import pytest
import rcp

from app.demo.demo_document import DemoDocument
from app.demo.document_store import DocumentStore
from app.demo.filter_sql import read_filter

PLACES = [("json", "function"), ("json", "class"), ("csv", "class"), ("os", "module")]


def leaf(field: str, op: str, value: Any) -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


@pytest.mark.parametrize(
    ("tree", "places"),
    [
        (leaf("module", "eq", "json"), [0, 1]),
        (leaf("module", "ne", "json"), [2, 3]),
        (leaf("kind", "in", ["function", "module"]), [0, 3]),
        (leaf("kind", "nin", ["function", "module"]), [1, 2]),
        ({"and": [leaf("module", "eq", "json"), leaf("kind", "eq", "class")]}, [1]),
        ({"or": [leaf("module", "eq", "os"), leaf("kind", "eq", "function")]}, [0, 3]),
        ({"not": {"or": [leaf("module", "eq", "os"), leaf("module", "eq", "csv")]}}, [0, 1]),
        ({"and": [{"not": leaf("module", "eq", "os")}, {"or": [leaf("kind", "eq", "class")]}]}, [1, 2]),
        (leaf("module", "eq", "json' OR '1'='1"), []),
    ],
)
def test_trees_select_documents(tree: dict[str, Any], places: list[int]) -> None:
    """Every operator and combinator means what the protocol says; a value is never part of the statement."""
    documents = [DemoDocument(str(n), "", "", {}, {"module": m, "kind": k}) for n, (m, k) in enumerate(PLACES)]
    router = DocumentStore(documents)
    where = read_filter(tree)
    assert where is not None
    assert router.places(where) == places
    router.close()


@pytest.mark.parametrize("tree", [None, {}])
def test_no_filter_is_no_condition(tree: Any) -> None:
    """Absent and empty mean the same."""
    assert read_filter(tree) is None


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        (leaf("author", "eq", "me"), -32602),
        (leaf("module", "eq", 7), -32602),
        (leaf("module", "in", ["json", 7]), -32602),
        (leaf("module", "in", []), -32602),
        (leaf("module", "like", "j"), -32602),
        (leaf("module", "gt", "j"), -32602),
        (leaf("module", "contains", "js"), -32005),
        (leaf("module", "exists", True), -32005),
        ({"and": []}, -32602),
        ({"or": []}, -32602),
        ("module = json", -32602),
    ],
)
def test_what_cannot_be_answered_is_refused(tree: Any, code: int) -> None:
    """Unknown fields, wrong values and empty combinators are malformed; operators that we lack are not offered."""
    with pytest.raises(rcp.RcpError) as refusal:
        read_filter(tree)
    assert refusal.value.code == code
    assert refusal.value.data.keys() & {"field", "option"}
