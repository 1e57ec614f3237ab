"""Judged queries read from two files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.evaluation.judged_queries import EvaluationError, Query, read_judged, read_judgements
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
    with pytest.raises(
        EvaluationError, match=r"for any of the 1 queries in .* like 'q1', the ids of the queries like 'Q1'"
    ):
        read(tmp_path, {"qid": "Q1", "query": "a"})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "line 2, column 1: is not JSON"),
        ('{"qid": "a", "query": "b", "params": {"a": NaN}}', "line 2: is not JSON: NaN"),
        ('{"qid": "a", "query": "\\ud800"}', "line 2: contains half of a surrogate pair"),
        (["a"], "line 2: is not a JSON object"),
        ({"query": "b"}, "line 2: 'qid' must be a string or a whole number"),
        ({"qid": True, "query": "b"}, "line 2: 'qid' must be"),
        ({"qid": "a"}, "line 2: 'query' must be a string"),
        ({"qid": "a", "query": ""}, "line 2: 'query' must be a string"),
        ({"qid": "a", "querry": "b"}, "line 2: 'querry' is unknown; did you mean 'query'?"),
        ({"qid": "a", "query": "b", "params": []}, "line 2: 'params' must be an object"),
        ({"qid": "a", "query": "b", "params": {"k": 3}}, "line 2: 'params.k' is not allowed"),
        ({"qid": "a", "query": "b", "params": {"sessionId": "s"}}, "line 2: 'params.sessionId' is not allowed"),
        ({"qid": "a", "query": "b", "params": {"x-gateway": 1}}, "line 2: 'params.x-gateway' must be an object"),
        ({"qid": "q1", "query": "b"}, "line 2: 'qid' is 'q1' as in line 1"),
    ],
)
def test_a_fault_is_told_with_line_field_and_remedy(tmp_path: Path, line: Any, told: str) -> None:
    """One error that names the file, the line, the field and what to do."""
    with pytest.raises(EvaluationError) as caught:
        read(tmp_path, {"qid": "q1", "query": "a"}, line)
    assert f"queries, {told}" in str(caught.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    """Nothing to ask is a fault."""
    with pytest.raises(EvaluationError, match="contains no queries; write"):
        read(tmp_path, "")


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "qrels"
    path.write_text(text, encoding="utf-8")
    return path


def test_trec_lines_are_read(tmp_path: Path) -> None:
    """Blank lines and any white space are fine; a negative relevance is 0, the same line twice is one."""
    text = "\ufeffq1 0 d1 2\r\n\nq1\t0\td2  -1\nq2 Q0 d1 1\nq1 0 d1 2\n"
    assert read_judgements(written(tmp_path, text)) == {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": 1}}


def test_json_is_read(tmp_path: Path) -> None:
    """A list of documents is binary, an object graded; numbers are ids as well."""
    text = '\n {"q1": ["d1", 7], "q2": {"d1": 3, "d2": -2}, "q3": []}'
    assert read_judgements(written(tmp_path, text)) == {"q1": {"d1": 1, "7": 1}, "q2": {"d1": 3, "d2": 0}, "q3": {}}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("q1 0 d1 1\nq1 0 d2", "qrels, line 2: has 3 field(s), 'q1 0 d2'; write four fields"),
        ("query-id\tcorpus-id\tscore", "qrels, line 1: has 3 field(s)"),
        ("q1 0 d1 high", "qrels, line 1: relevance 'high' is not a whole number"),
        ("q1 0 d1 1\nq1 0 d1 2", "qrels, line 2: document 'd1' of query 'q1' is judged twice with different relevance"),
        ('["d1"]', "qrels is a JSON array; write {"),
        (" \n", "qrels is empty; write"),
        ("{}", "qrels contains no judgements; write"),
        ('{"q1": "d1"}', "qrels: query 'q1': must be an array or an object of documents, not \"d1\"; write"),
        ('{"q1": {"d1": 0.5}}', "qrels: query 'q1', document 'd1': relevance must be a whole number, not 0.5; write"),
        ('{"q1": {"d1": true}}', "not true; write"),
        ('{"q1": ["d1", null]}', "qrels: query 'q1', [1]: a document id is a string, not null; write"),
    ],
)
def test_a_bad_judgement_is_reported_with_place_and_fix(tmp_path: Path, text: str, place: str) -> None:
    """The message has the file, the line or field, and how to write it."""
    with pytest.raises(EvaluationError) as caught:
        read_judgements(written(tmp_path, text))
    assert place in str(caught.value)
    assert ";" in str(caught.value)
