"""One engine's answer beside others that are to be joined with it, and the ids that callers see of it. Pure.

Decides in which order engines speak: by priority (highest first), then by id, so that neither arrival nor the order
of the registry shows. It refuses to know what the answers are about.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

from app.fusion.identity import public_id


class EngineResponse(NamedTuple):
    """What one engine gave, read and cleaned: lists hold well-formed members only."""

    engine: str
    result: Mapping[str, Any]
    priority: int = 0
    namespace: str | None = None
    """Prefix of its ids, as in fusion."""

    def listed(self, key: str) -> Sequence[Any]:
        """The list under `key`, empty if there is none."""
        found = self.result.get(key)
        return found if type(found) is list else ()

    def public(self, own: str | int | float) -> str | int | float:
        """The id that callers see for this engine's `own`."""
        return public_id({"id": own}, self.namespace)


def in_order(responses: Iterable[EngineResponse]) -> list[EngineResponse]:
    """The order in which engines speak."""
    return sorted(responses, key=lambda response: (-response.priority, response.engine))


def given(responses: Iterable[EngineResponse], key: str) -> bool:
    """Whether anybody said anything under `key`."""
    return any(key in response.result for response in responses)


def left_over(responses: Iterable[EngineResponse], joined: Iterable[str]) -> dict[str, Any]:
    """Fields that nobody here knows how to join: the first engine's that has one, as it is."""
    known = frozenset(joined)
    found: dict[str, Any] = {}
    for response in in_order(responses):
        for key, value in response.result.items():
            if key not in known:
                found.setdefault(key, value)
    return found


def by_turns(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Every list's first, then every list's second, and so on."""
    longest = max(map(len, lists), default=0)
    return [members[place] for place in range(longest) for members in lists if place < len(members)]


def marked(member: Mapping[str, Any], engines: Sequence[str]) -> dict[str, Any]:
    """A copy of `member` that says in `meta.engine` whose it is and in `meta.engines` who has it, as hits do."""
    own = member.get("meta")
    meta = own if type(own) is dict else {}
    return {**member, "meta": {**meta, "engine": engines[0], "engines": [{"id": engine} for engine in engines]}}


def measure(value: Any) -> float:
    """A score or a weight to sort by; whatever is no finite number sorts last."""
    return float(value) if isinstance(value, int | float) and type(value) is not bool and isfinite(value) else -inf
