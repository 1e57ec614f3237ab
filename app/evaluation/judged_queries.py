"""Judged queries: what `eval` and `tune` ask, together with what the right answers are.

It decides what a line of a query file is, and that a query nobody judged is left out and counted.
It refuses to know who is asked.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.failures import Failure
from app.cli.terminal import one_line
from app.evaluation.judgements import Judgements, read_judgements

QueriesOption = Annotated[
    Path,
    typer.Option("--queries", help='What to ask, JSON lines: {"qid", "query", "params"?}.', show_default=False),
]
QrelsOption = Annotated[
    Path,
    typer.Option(
        "--qrels",
        help='What is right: TREC lines (qid 0 docid rel) or JSON {"qid": ["docid"]} or {"qid": {"docid": rel}}.',
        show_default=False,
    ),
]

LINE_FORM = 'write {"qid": "q1", "query": "what to look for"}'
_KEYS = ("qid", "query", "params")

OURS = {
    "query": "it stands beside 'params'",
    "k": "it is the same for all queries",
    "cursor": "only first pages are measured",
    "sessionId": "a session would leave out what it has already returned",
}
"""Params that a line may not set, and why."""


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
        """What to say about the queries that were left out, if any were."""
        if self.unjudged:
            total = len(self.queries) + self.unjudged
            yield f"{self.unjudged} of {total} queries left out: no relevant document is known for them"


def read_judged(queries: Path, qrels: Path) -> JudgedQueries:
    """Both files. Raises Failure or SettingsError naming the file, the place and the remedy."""
    asked = _read_queries(queries)
    judgements = read_judgements(qrels)
    kept = tuple(query for query in asked if any(judgements.get(query.qid, {}).values()))
    if not kept:
        raise Failure(
            f"{qrels} names no relevant document for any of the {len(asked)} queries of {queries}; the ids there are "
            f"such as '{one_line(next(iter(judgements)), 60)}', the ids here such as '{one_line(asked[0].qid, 60)}'"
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
            raise Failure(
                f"{path}, line {number}: 'qid' is '{one_line(query.qid, 60)}' as in line {lines[query.qid]}; "
                "give each query an id of its own"
            )
        lines[query.qid] = number
        queries.append(query)
    if not queries:
        raise Failure(f"{path} holds no query; {LINE_FORM}, one to a line")
    return queries


def _read_query(line: str, place: str) -> Query:
    found = _read_json(line, place)
    _refuse_misspelt(found, place)
    qid, text, params = (found.get(key) for key in _KEYS)
    if type(qid) not in (str, int) or qid == "":
        raise Failure(f"{place}: 'qid' must be a string or a whole number; {LINE_FORM}")
    if type(text) not in (str, dict, list) or not text:
        raise Failure(f"{place}: 'query' must be a string, or content blocks; {LINE_FORM}")
    params = {} if params is None else params
    if type(params) is not dict:
        raise Failure(f'{place}: \'params\' must be an object of retrieve\'s params, such as {{"mode": "dense"}}')
    _refuse_ours(params, place)
    return Query(str(qid), text, params)


def _read_json(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        raise Failure(f"{place}, column {fault.colno}: is not JSON: {fault.msg}; {LINE_FORM}") from None
    except UnicodeEncodeError:
        raise Failure(f"{place}: holds half of a surrogate pair, which cannot be sent; remove it") from None
    except (ValueError, RecursionError) as fault:
        raise Failure(f"{place}: is not JSON: {fault}; {LINE_FORM}") from None
    if type(found) is not dict:
        raise Failure(f"{place}: is no JSON object; {LINE_FORM}")
    return found


def _refuse_ours(params: Mapping[str, Any], place: str) -> None:
    for name, reason in OURS.items():
        if name in params:
            raise Failure(f"{place}: 'params.{name}' cannot be given, {reason}; leave it out")
    for name in ("_meta", "fusion", "x-gateway"):
        if params.get(name) is not None and type(params[name]) is not dict:
            raise Failure(f"{place}: 'params.{name}' must be an object; leave it out or write {{}}")


def _refuse_misspelt(found: Mapping[str, Any], place: str) -> None:
    """What the line says besides is its own business, unless it looks like one of our words."""
    from difflib import get_close_matches

    for key in found:
        near = [] if key in _KEYS else get_close_matches(key, _KEYS, 1)
        if near and near[0] not in found:
            raise Failure(f"{place}: '{one_line(key, 40)}' is unknown; did you mean '{near[0]}'?")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
