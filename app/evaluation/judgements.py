"""Relevance judgements as a file gives them: which documents are right for which query, and how right.

It decides what a judgement is (TREC lines or JSON) and how a fault in the file is told: file, place, remedy.
It refuses to know queries and rankings.
"""

from pathlib import Path
from typing import Any

from app.cli.failures import Failure
from app.cli.terminal import one_line

Judgements = dict[str, dict[str, int]]
"""Query id -> document id -> relevance: 0 is not relevant, more is better."""

TREC_FORM = "write four fields: qid 0 docid relevance"
JSON_FORM = 'write {"qid": ["docid", …]} or {"qid": {"docid": relevance}}'


def read_judgements(path: Path) -> Judgements:
    """The judgements of a TREC file or of a JSON object; a file that begins with a brace is JSON.

    Relevance below 0 counts as 0, as in TREC's own tool. Raises Failure naming the file, the place and the remedy, and
    SettingsError if the file cannot be read at all.
    """
    from app.settings.file_syntax import read_text

    text = read_text(path).removeprefix("\ufeff")
    if not text.strip():
        raise Failure(f"{path} is empty; {TREC_FORM}, or {JSON_FORM}")
    first = text.lstrip()[:1]
    if first == "[":
        raise Failure(f"{path} is a JSON array; {JSON_FORM}")
    judgements = _read_json(path, text) if first == "{" else _read_trec(path, text)
    if not judgements:
        raise Failure(f"{path} holds no judgement; {JSON_FORM}")
    return judgements


def _read_trec(path: Path, text: str) -> Judgements:
    judgements: Judgements = {}
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        place = f"{path}, line {number}"
        if len(fields) != 4:
            raise Failure(f"{place}: has {len(fields)} field(s), '{one_line(line, 60)}'; {TREC_FORM}")
        qid, _, document, stated = fields
        relevance = _whole(stated)
        if relevance is None:
            raise Failure(f"{place}: relevance '{one_line(stated, 20)}' is no whole number; {TREC_FORM}")
        judged = judgements.setdefault(qid, {})
        if judged.setdefault(document, relevance) != relevance:
            raise Failure(
                f"{place}: document '{one_line(document, 60)}' of query '{one_line(qid, 60)}' is judged a second time, "
                "and differently; remove one of the two lines"
            )
    return judgements


def _whole(text: str) -> int | None:
    """A relevance as TREC files write it, never below 0."""
    try:
        return max(0, int(text))
    except ValueError:
        return None


def _read_json(path: Path, text: str) -> Judgements:
    from app.settings.file_syntax import read_json

    return {qid: _judged(path, qid, stated) for qid, stated in read_json(str(path), text).items()}


def _judged(path: Path, qid: str, stated: Any) -> dict[str, int]:
    place = f"{path}: query '{one_line(qid, 60)}'"
    if type(stated) is dict:
        for document, relevance in stated.items():
            if type(relevance) is not int:
                raise Failure(
                    f"{place}, document '{one_line(document, 60)}': relevance must be a whole number, "
                    f"not {_shown(relevance)}; {JSON_FORM}"
                )
        return {document: max(0, relevance) for document, relevance in stated.items()}
    if type(stated) is not list:
        raise Failure(f"{place}: must be an array or an object of documents, not {_shown(stated)}; {JSON_FORM}")
    for place_in_list, document in enumerate(stated):
        if type(document) not in (str, int):
            raise Failure(f"{place}, [{place_in_list}]: a document id is a string, not {_shown(document)}; {JSON_FORM}")
    return {str(document): 1 for document in stated}


def _shown(value: Any) -> str:
    """A JSON value in a message."""
    import json

    return one_line(json.dumps(value, ensure_ascii=False), 40)
