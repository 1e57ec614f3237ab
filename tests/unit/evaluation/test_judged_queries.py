"""Judged queries read from two files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.failures import Failure
from app.evaluation.judged_queries import Query, read_judged
from tests.support.judged_gateway import write_lines

QRELS = {"q1": ["d1"], "7": {"d2": 2, "d3": 0}, "q9": {"d1": 0}}


def read(folder: Path, *lines: Any, qrels: Any = QRELS) -> Any:
    """The judged queries of these lines."""
    (folder / "qrels").write_text(json.dumps(qrels), encoding="utf-8")
    return read_judged(write_lines(folder / "queries", *lines), folder / "qrels")


def test_queries_come_with_their_judgements(tmp_path: Path) -> None:
    """In the order of the file, ids as strings, blocks as queries; what a line says besides is its own business."""
    blocks = [{"type": "text", "text": "b"}]
    judged = read(
        tmp_path,
        "\ufeff" + json.dumps({"qid": 7, "query": blocks, "params": {"mode": "dense"}, "topic": "x"}),
        "  ",
        {"qid": "q1", "query": "a", "params": None},
    )
    assert judged.queries == (Query("7", blocks, {"mode": "dense"}), Query("q1", "a", {}))
    assert judged.judgements == {"7": {"d2": 2, "d3": 0}, "q1": {"d1": 1}}
    assert (judged.unjudged, list(judged.notes())) == (0, [])


def test_queries_without_a_relevant_document_are_left_out(tmp_path: Path) -> None:
    """Neither judged nor judged with 0 alone; both are counted."""
    judged = read(tmp_path, *({"qid": qid, "query": "a"} for qid in ("q1", "q8", "q9")))
    assert [query.qid for query in judged.queries] == ["q1"]
    assert list(judged.notes()) == ["2 of 3 queries left out: no relevant document is known for them"]


def test_files_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    """If no query has judgements, ids of both files are shown."""
    with pytest.raises(Failure, match=r"for any of the 1 queries of .* such as 'q1', the ids here such as 'Q1'"):
        read(tmp_path, {"qid": "Q1", "query": "a"})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "line 2, column 1: is not JSON"),
        ('{"qid": "a", "query": "b", "params": {"a": NaN}}', "line 2: is not JSON: NaN"),
        ('{"qid": "a", "query": "\\ud800"}', "line 2: holds half of a surrogate pair"),
        (["a"], "line 2: is no JSON object"),
        ({"query": "b"}, "line 2: 'qid' must be a string or a whole number"),
        ({"qid": True, "query": "b"}, "line 2: 'qid' must be"),
        ({"qid": "a"}, "line 2: 'query' must be a string"),
        ({"qid": "a", "query": ""}, "line 2: 'query' must be a string"),
        ({"qid": "a", "querry": "b"}, "line 2: 'querry' is unknown; did you mean 'query'?"),
        ({"qid": "a", "query": "b", "params": []}, "line 2: 'params' must be an object"),
        ({"qid": "a", "query": "b", "params": {"k": 3}}, "line 2: 'params.k' cannot be given"),
        ({"qid": "a", "query": "b", "params": {"sessionId": "s"}}, "line 2: 'params.sessionId' cannot be given"),
        ({"qid": "a", "query": "b", "params": {"x-gateway": 1}}, "line 2: 'params.x-gateway' must be an object"),
        ({"qid": "q1", "query": "b"}, "line 2: 'qid' is 'q1' as in line 1"),
    ],
)
def test_a_fault_is_told_with_line_field_and_remedy(tmp_path: Path, line: Any, told: str) -> None:
    """One error that names the file, the line, the field and what to do."""
    with pytest.raises(Failure) as caught:
        read(tmp_path, {"qid": "q1", "query": "a"}, line)
    assert f"queries, {told}" in str(caught.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    """Nothing to ask is a fault."""
    with pytest.raises(Failure, match="holds no query; write"):
        read(tmp_path, "")
