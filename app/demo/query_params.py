"""Reads the `retrieve` params that a demo engine supports (RCP §7.7): honoured, ignored with a note, or rejected."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rcp

from app.demo.filter_sql import Where, read_filter

DEFAULT_K = 10
UNSUPPORTED = ("cursor", "fusion", "level", "mmr", "recency", "rerank", "rewrite", "tokenBudget", "includeVectors")
"""Options that no demo engine has."""


@dataclass(frozen=True, slots=True)
class DemoQuery:
    """One `retrieve`, checked. `min_score` is in the engine's own scale; `notes` say what was not honoured."""

    text: str
    k: int = DEFAULT_K
    where: Where | None = None
    min_score: float | None = None
    include_text: bool = True
    notes: tuple[str, ...] = ()


def read_question(params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> DemoQuery:
    """`params` as a Question to an engine that advertises `capabilities`.

    Raises rcp.RcpError: -32602 for what is malformed, -32005 for an option that is not advertised. With `strict: false`
    the latter becomes a note, but a filter or a snapshot is never dropped.
    """
    given = {name: value for name, value in params.items() if value is not None}
    missing = dict(_not_offered(given, capabilities))
    if "filter" in given and "filter" not in capabilities:
        raise _unsupported("filter", "filters are not offered")
    if "indexVersion" in given:
        raise _unsupported("indexVersion", "snapshots are not offered")
    if given.get("strict", True):
        for option, why in missing.items():
            raise _unsupported(option, why)
    include_text = given.get("includeText", True)
    return DemoQuery(
        text=_text_of(given.get("query")),
        k=min(given.get("k", DEFAULT_K), capabilities["retrieve"]["maxK"]),
        where=read_filter(given.get("filter")),
        min_score=_number(given, "minScore"),
        include_text=include_text is not False,
        notes=tuple(missing.values()),
    )


def _not_offered(given: Mapping[str, Any], capabilities: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The options in `given` that the engine lacks, each with the sentence that says so."""
    offer = capabilities["retrieve"]
    lacking = [
        (option, f"{option} '{given[option]}' is not offered")
        for option, offered in (("mode", "modes"), ("modality", "modalities"), ("unit", "units"))
        if option in given and given[option] not in offer[offered]
    ]
    return lacking + [(name, f"{name} is not offered") for name in UNSUPPORTED if given.get(name, False) is not False]


def _unsupported(option: str, why: str) -> rcp.RcpError:
    return rcp.RcpError(-32005, why, {"option": option})


def _text_of(query: Any) -> str:
    """The words of a query: a string, a Content block or several of them (RCP §4.7)."""
    blocks = query if isinstance(query, list) and query else [query]
    return " ".join(map(_block_text, blocks))


def _block_text(block: Any) -> str:
    text = block
    if isinstance(block, dict):
        if block.get("type") in ("image", "audio", "blob"):
            raise _unsupported("modality", "only text can be searched")
        text = block.get("text") if block.get("type") == "text" else None
    if not isinstance(text, str):
        raise rcp.RcpError(-32602, "'query' must be a string or text blocks", {"field": "query"})
    return text


def _number(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise rcp.RcpError(-32602, f"'{name}' must be a number", {"field": name})
    return value
