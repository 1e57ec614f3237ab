"""Hits that a tenant has reported as poisoned (RCP §7.14). A report counts for this tenant alone and expires.

Separate from pages and sessions, since reports outlive both.
"""

from collections.abc import Container, Iterable
from itertools import islice
from typing import Any

from app.state.store import Store

PREFIX = "suspicion:"


class PoisonReports:
    """What was reported. A tenant's reports live for `seconds` after its last."""

    __slots__ = ("_max_ids", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_ids: int) -> None:
        """At most `max_ids` of each tenant; of more, the oldest are forgotten first."""
        self._store = store
        self._seconds = seconds
        self._max_ids = max_ids

    async def report(self, tenant: str, ids: Iterable[str]) -> None:
        """Remember that this tenant (empty: nobody tells them apart) calls the hits of these ids poisoned."""
        reported = dict.fromkeys(ids, True)

        def change(known: dict[str, bool] | None) -> dict[str, bool]:
            known = {**(known or {}), **reported}
            return dict(islice(known.items(), max(0, len(known) - self._max_ids), None))

        await self._store.change(PREFIX + tenant, change, self._seconds, _as_it_is, _as_it_is, size=_size)

    async def of(self, tenant: str) -> Container[str]:
        """The ids that this tenant has reported."""
        return await self._store.get(PREFIX + tenant, _as_it_is) or {}

    def __repr__(self) -> str:
        return f"<Suspicions for {self._seconds:g} s in {self._store!r}>"


def _size(known: dict[str, bool]) -> int:
    return len(known) + 1


def _as_it_is(value: Any) -> Any:
    return value
