"""The blend's input: one engine's ranked list, and the wishes for fusing several of them.

Decides what a list is once duplicates inside it are gone: the best rank is kept, later ranks close up.
It refuses to know where a list came from and what the other lists hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from app.fusion.identity import Identity, identify

Method = Literal["rrf", "weighted", "convex"]
Reading = Literal["ranked", "independent", "ignore"]

MAX_WEIGHT = 1e6
"""Largest weight of a list: sums of them stay far from the end of what a double can hold."""


class RankedList(NamedTuple):
    """One engine's answer; a named tuple, since one is made per engine and request.

    `hits` are in the engine's order, each with an `id` (string or number, never a boolean) and a numeric `score`; every
    other field is untrusted.
    """

    engine: str
    hits: Sequence[dict[str, Any]]
    weight: float = 1.0
    """Share in the sums, from 0 (adds nothing) to MAX_WEIGHT."""
    priority: int = 0
    fetch_k: int = 0
    """How many hits the engine was asked for."""
    score_floor: float | None = None
    """The theoretical minimum of its score, if it states one."""
    confidence: Reading = "ranked"
    namespace: str | None = None
    """Prefix of its ids: `docs` makes 7 `docs:7`."""
    size: int = 0
    """Bytes of the answer it came in."""
    max_trust: str | None = None
    """The highest `trust.level` its hits may have; None: any."""


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """How to blend. `confidence_weight` in [0,1] tempers rrf alone; 0 is plain RRF."""

    method: Method = "rrf"
    rrf_k: int = 60
    confidence_weight: float = 0.8
    identity: Identity = "id"


_STRINGS = frozenset({str})

Ballot = tuple[RankedList, Sequence[dict[str, Any]], dict[str, int]]
"""A ranked list without inner duplicates: its source, its hits, and the position of each document's key, best first.
A plain tuple, because eight of them are unpacked for every fused hit."""


def cast(source: RankedList, identity: Identity) -> Ballot:
    """The ballot of one engine: every document once, at its best rank."""
    hits = source.hits
    if identity == "id" and source.namespace is None:
        ids = [hit["id"] for hit in hits]
        # A copy of a string must be hashed again; the ids themselves are hashed once for every table they go into.
        keys = ids if _STRINGS.issuperset(map(type, ids)) else [f"{key}" for key in ids]
        places = dict(zip(keys, range(len(keys)), strict=True))
        if len(places) == len(hits):
            return source, hits, places
    first: dict[str, dict[str, Any]] = {}
    for key, hit in zip(identify(hits, identity, source.namespace), hits, strict=True):
        first.setdefault(key, hit)
    return source, list(first.values()), {key: place for place, key in enumerate(first)}
