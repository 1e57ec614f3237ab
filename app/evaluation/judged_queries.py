"""The input of `eval` and `tune`: a file of queries (JSON lines) and a file of relevance judgements (TREC or JSON).

Queries without a relevant document are left out and counted. Every fault names the file, the place and the fix.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from app.settings.field_errors import shown

LINE_FORM = 'write {"qid": "q1", "query": "what to look for"}'
TREC_FORM = "write four fields: qid 0 docid relevance"
JSON_FORM = 'write {"qid": ["docid", …]} or {"qid": {"docid": relevance}}'
_KEYS = ("qid", "query", "params")

RESERVED_PARAMS = {
    "query": "it stands beside 'params'",
    "k": "it is the same for all queries",
    "cursor": "only first pages are measured",
    "sessionId": "a session would leave out hits that it has already returned",
}
"""Params that a line may not set, and why."""

Judgements = dict[str, dict[str, int]]
"""Query id -> document id -> relevance: 0 is not relevant, a higher value is better."""


class EvaluationError(Exception):
    """A file of queries or judgements that cannot be used. The message names the file, the place and the fix."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line: `text` is what RCP takes as `query`, `params` further params of its `retrieve` (RCP §7.7)."""

    qid: str
    text: Any
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JudgedQueries:
    """Queries with at least one relevant document each, in the order of the file, and their judgements."""

    queries: tuple[Query, ...]
    judgements: Judgements
    unjudged: int
    """Queries left out: nothing is known to be relevant to them."""

    def notes(self) -> Iterator[str]:
        """One sentence about the queries that were left out; none if there are none."""
        if self.unjudged:
            total = len(self.queries) + self.unjudged
            yield f"{self.unjudged} of {total} queries left out: no relevant document is known for them"


def read_judged(queries: Path, qrels: Path) -> JudgedQueries:
    """Read both files. Raises EvaluationError, and SettingsError for a file that cannot be read."""
    asked = _read_queries(queries)
    judgements = read_judgements(qrels)
    kept = tuple(query for query in asked if any(judgements.get(query.qid, {}).values()))
    if not kept:
        raise EvaluationError(
            f"{qrels} has no relevant document for any of the {len(asked)} queries in {queries}; its ids look "
            f"like '{shown(next(iter(judgements)))}', the ids of the queries like '{shown(asked[0].qid)}'"
        )
    return JudgedQueries(kept, {query.qid: judgements[query.qid] for query in kept}, len(asked) - len(kept))


def _read_queries(path: Path) -> list[Query]:
    from app.settings.file_syntax import read_text

    lines: dict[str, int] = {}
    queries = []
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        query = _read_query(line, f"{path}, line {number}")
        if query.qid in lines:
            raise EvaluationError(
                f"{path}, line {number}: 'qid' is '{shown(query.qid)}' as in line {lines[query.qid]}; "
                "give each query an id of its own"
            )
        lines[query.qid] = number
        queries.append(query)
    if not queries:
        raise EvaluationError(f"{path} contains no queries; {LINE_FORM}, one per line")
    return queries


def _read_query(line: str, place: str) -> Query:
    found = _read_json_line(line, place)
    _refuse_misspelt(found, place)
    qid, text, params = (found.get(key) for key in _KEYS)
    if type(qid) not in (str, int) or qid == "":
        raise EvaluationError(f"{place}: 'qid' must be a string or a whole number; {LINE_FORM}")
    if type(text) not in (str, dict, list) or not text:
        raise EvaluationError(f"{place}: 'query' must be a string, or content blocks; {LINE_FORM}")
    params = {} if params is None else params
    if type(params) is not dict:
        raise EvaluationError(
            f'{place}: \'params\' must be an object of retrieve\'s params, such as {{"mode": "dense"}}'
        )
    _refuse_reserved(params, place)
    return Query(str(qid), text, params)


def _read_json_line(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        raise EvaluationError(f"{place}, column {fault.colno}: is not JSON: {fault.msg}; {LINE_FORM}") from None
    except UnicodeEncodeError:
        raise EvaluationError(f"{place}: contains half of a surrogate pair, which cannot be sent; remove it") from None
    except (ValueError, RecursionError) as fault:
        raise EvaluationError(f"{place}: is not JSON: {fault}; {LINE_FORM}") from None
    if type(found) is not dict:
        raise EvaluationError(f"{place}: is not a JSON object; {LINE_FORM}")
    return found


def _refuse_reserved(params: Mapping[str, Any], place: str) -> None:
    for name, reason in RESERVED_PARAMS.items():
        if name in params:
            raise EvaluationError(f"{place}: 'params.{name}' is not allowed: {reason}; remove it")
    for name in ("_meta", "fusion", "x-gateway"):
        if params.get(name) is not None and type(params[name]) is not dict:
            raise EvaluationError(f"{place}: 'params.{name}' must be an object; remove it or write {{}}")


def _refuse_misspelt(found: Mapping[str, Any], place: str) -> None:
    """Refuse an unknown key that resembles a known one; data sets may have other keys of their own."""
    for key in found:
        near = [] if key in _KEYS else get_close_matches(key, _KEYS, 1)
        if near and near[0] not in found:
            raise EvaluationError(f"{place}: '{shown(key)}' is unknown; did you mean '{near[0]}'?")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def read_judgements(path: Path) -> Judgements:
    """The judgements of a TREC file or of a JSON object; a file that begins with a brace is JSON.

    Relevance below 0 counts as 0, as in trec_eval. Raises EvaluationError, and SettingsError for an unreadable file.
    """
    from app.settings.file_syntax import read_text

    text = read_text(path).removeprefix("\ufeff")
    if not text.strip():
        raise EvaluationError(f"{path} is empty; {TREC_FORM}, or {JSON_FORM}")
    first = text.lstrip()[:1]
    if first == "[":
        raise EvaluationError(f"{path} is a JSON array; {JSON_FORM}")
    judgements = _read_json_judgements(path, text) if first == "{" else _read_trec(path, text)
    if not judgements:
        raise EvaluationError(f"{path} contains no judgements; {JSON_FORM}")
    return judgements


def _read_trec(path: Path, text: str) -> Judgements:
    judgements: Judgements = {}
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        place = f"{path}, line {number}"
        if len(fields) != 4:
            raise EvaluationError(f"{place}: has {len(fields)} field(s), '{shown(line)}'; {TREC_FORM}")
        qid, _, document, stated = fields
        relevance = _whole(stated)
        if relevance is None:
            raise EvaluationError(f"{place}: relevance '{shown(stated)}' is not a whole number; {TREC_FORM}")
        judged = judgements.setdefault(qid, {})
        if judged.setdefault(document, relevance) != relevance:
            raise EvaluationError(
                f"{place}: document '{shown(document)}' of query '{shown(qid)}' is judged twice "
                "with different relevance; remove one of the two lines"
            )
    return judgements


def _whole(text: str) -> int | None:
    """The relevance in a TREC line, at least 0; None if it is not a whole number."""
    try:
        return max(0, int(text))
    except ValueError:
        return None


def _read_json_judgements(path: Path, text: str) -> Judgements:
    from app.settings.file_syntax import read_json

    return {qid: _judged(path, qid, stated) for qid, stated in read_json(str(path), text).items()}


def _judged(path: Path, qid: str, stated: Any) -> dict[str, int]:
    place = f"{path}: query '{shown(qid)}'"
    if type(stated) is dict:
        for document, relevance in stated.items():
            if type(relevance) is not int:
                raise EvaluationError(
                    f"{place}, document '{shown(document)}': relevance must be a whole number, "
                    f"not {_shown_json(relevance)}; {JSON_FORM}"
                )
        return {document: max(0, relevance) for document, relevance in stated.items()}
    if type(stated) is not list:
        raise EvaluationError(
            f"{place}: must be an array or an object of documents, not {_shown_json(stated)}; {JSON_FORM}"
        )
    for place_in_list, document in enumerate(stated):
        if type(document) not in (str, int):
            raise EvaluationError(
                f"{place}, [{place_in_list}]: a document id is a string, not {_shown_json(document)}; {JSON_FORM}"
            )
    return {str(document): 1 for document in stated}


def _shown_json(value: Any) -> str:
    """A JSON value in a message."""
    return shown(json.dumps(value, ensure_ascii=False))
