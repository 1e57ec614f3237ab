"""The hits that were answered lately, by whom they were answered to: found again by id for as long as they are kept.

What one caller was answered does not exist for another, nor what was kept of engines that it does not see any more. It
refuses to know who fetches them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from app.federation.tenants import Tenant
from app.settings.mcp import McpSettings
from app.state.in_memory import ALONE
from app.state.memory_store import MemoryStore
from app.state.store import StateBackend, Store

HIT = "hit:"


class RecentHits:
    """Keeps and finds hits."""

    __slots__ = ("_seconds", "_store")

    def __init__(self, store: Store, seconds: float) -> None:
        """A hit can be found for so many `seconds` after it was last answered."""
        self._store = store
        self._seconds = seconds

    @classmethod
    def kept(
        cls, wishes: McpSettings, backend: StateBackend = ALONE, clock: Callable[[], float] = monotonic
    ) -> "RecentHits":
        """Within the bounds that are wished, shared as `sharing` says."""
        most = wishes.max_kept_hits
        return cls(backend.store("recent", MemoryStore(max(1, most), most, clock)), wishes.fetch_ttl_seconds)

    async def keep(self, tenant: Tenant | None, hits: Sequence[Mapping[str, Any]]) -> None:
        """These hits were answered to this tenant."""
        scope = _scope(tenant) + HIT
        await asyncio.gather(
            *(self._store.put(f"{scope}{hit['id']}", hit, self._seconds, dict, size=_size(hit)) for hit in hits)
        )

    async def find(self, tenant: Tenant | None, hit_id: str) -> Mapping[str, Any] | None:
        """The hit as it was last answered to this tenant; None if it was not, or not lately."""
        found: Mapping[str, Any] | None = await self._store.get(f"{_scope(tenant)}{HIT}{hit_id}", dict)
        return found

    def __repr__(self) -> str:
        return f"<Recent hits of {self._seconds:g} s in {self._store!r}>"


def _scope(tenant: Tenant | None) -> str:
    return "" if tenant is None else tenant.scope


def _size(hit: Mapping[str, Any]) -> int:
    text = hit.get("text")
    return 1 + (len(text) if type(text) is str else len(repr(hit.get("content")))) // 1024
