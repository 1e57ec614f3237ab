"""Relevance judgements read from files."""

from pathlib import Path

import pytest

from app.cli.failures import Failure
from app.evaluation.judgements import read_judgements


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
        ("q1 0 d1 high", "qrels, line 1: relevance 'high' is no whole number"),
        ("q1 0 d1 1\nq1 0 d1 2", "qrels, line 2: document 'd1' of query 'q1' is judged a second time, and differently"),
        ('["d1"]', "qrels is a JSON array; write {"),
        (" \n", "qrels is empty; write"),
        ("{}", "qrels holds no judgement; write"),
        ('{"q1": "d1"}', "qrels: query 'q1': must be an array or an object of documents, not \"d1\"; write"),
        ('{"q1": {"d1": 0.5}}', "qrels: query 'q1', document 'd1': relevance must be a whole number, not 0.5; write"),
        ('{"q1": {"d1": true}}', "not true; write"),
        ('{"q1": ["d1", null]}', "qrels: query 'q1', [1]: a document id is a string, not null; write"),
    ],
)
def test_a_fault_is_told_with_its_place_and_remedy(tmp_path: Path, text: str, place: str) -> None:
    """File, line or field, what is wrong, and how to write it."""
    with pytest.raises(Failure) as caught:
        read_judgements(written(tmp_path, text))
    assert place in str(caught.value)
    assert ";" in str(caught.value)
