"""Where the hits of a session came from, so that feedback on them finds its way back (RCP §7.16).

Decides what is forgotten first. It refuses to know what is fed back, and where it is kept.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from app.protocol.param_fields import Id
from app.state.store import Store

PREFIX = "origins:"

Known = dict[str, Mapping[str, Id]]
"""A hit's id as a string -> engine id -> the id that this engine knows it by."""


class HitOrigins:
    """The sessions under way. Each is remembered for `seconds` after its last answer."""

    __slots__ = ("_max_hits", "_scope", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_hits: int, scope: str = "") -> None:
        """At most `max_hits` hits of a session are remembered; the oldest go first. `scope` tells whose they are."""
        self._scope = PREFIX + scope
        self._store = store
        self._seconds = seconds
        self._max_hits = max_hits

    def within(self, tenant_id: str) -> "HitOrigins":
        """The sessions of one tenant: another's do not exist."""
        return HitOrigins(self._store, self._seconds, self._max_hits, f"{tenant_id}:")

    async def of(self, session_id: str) -> Mapping[str, Mapping[str, Id]]:
        """A hit's id as a string -> engine id -> the id that this engine knows it by."""
        return await self._store.get(self._scope + session_id, _as_it_is) or {}

    async def remember(self, session_id: str, origins: Mapping[str, Mapping[str, Id]]) -> None:
        """These hits were answered under this session. Renews its time."""

        def change(before: Known | None) -> Known:
            known = {**(before or {})}
            for hit_id, owners in origins.items():
                known[hit_id] = {**known.pop(hit_id, {}), **owners}
            for hit_id in list(islice(known, max(0, len(known) - self._max_hits))):
                del known[hit_id]
            return known

        await self._store.change(self._scope + session_id, change, self._seconds, _as_it_is, _as_it_is, size=_size)

    def __repr__(self) -> str:
        return f"<Origins for {self._seconds:g} s in {self._store!r}>"


def _size(known: Known) -> int:
    return len(known) + 1


def _as_it_is(value: Any) -> Any:
    return value
