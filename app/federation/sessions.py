"""What the gateway remembers of earlier answers: hits shown in a session, the engines they came from, hits reported as
poisoned, and recent hits by id (RCP §7.7, §7.14, §7.16).

Entries expire, and beyond the configured limits the oldest are evicted. Each tenant sees only its own."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from time import monotonic
from typing import Any

from app.federation.tenants import Tenant
from app.protocol.param_fields import Id
from app.settings.mcp import McpSettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store

# --- Sessions (RCP §7.7) ---

SESSION = "session:"


class Trajectory:
    """What one session has returned before, from the point of view of one question.

    Hits of the question itself do not count, on whichever of its pages they were: a page may be requested again.
    """

    __slots__ = ("_owners", "root")

    def __init__(self, owners: Mapping[str, str], root: str) -> None:
        """`owners`: key of a hit -> the question it was returned for; `root`: the current question."""
        self._owners = owners
        self.root = root

    def __contains__(self, key: object) -> bool:
        owner = self._owners.get(key)  # type: ignore[call-overload]
        return owner is not None and owner != self.root

    def __len__(self) -> int:
        return len(self._owners)

    def __repr__(self) -> str:
        return f"<Trajectory of {len(self)} hits>"


class RetrieveSessions:
    """Which hits each session has returned. A session lives for `seconds` after its last response."""

    __slots__ = ("_max_keys", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_keys: int) -> None:
        """A session remembers at most `max_keys` hits; the oldest are evicted first."""
        self._store = store
        self._seconds = seconds
        self._max_keys = max_keys

    async def trajectory(self, session_id: str, root: str) -> Trajectory:
        """What this session has returned; `root` identifies the current question."""
        return Trajectory(await self._store.get(SESSION + session_id, _unchanged) or {}, root)

    async def remember(self, session_id: str, root: str, keys: Iterable[str]) -> None:
        """Record that question `root` returned the hits of these keys. Renews the lifetime of the session."""
        given = tuple(keys)

        def change(owners: dict[str, str] | None) -> dict[str, str]:
            owners = {} if owners is None else owners
            # A hit stays with the question that returned it first.
            owners.update([(key, owners.get(key, root)) for key in given])
            # Dicts keep insertion order, so the first keys are the oldest.
            for key in list(islice(owners, max(0, len(owners) - self._max_keys))):
                del owners[key]
            return owners

        await self._store.change(SESSION + session_id, change, self._seconds, _unchanged, _unchanged, size=_size)

    def __repr__(self) -> str:
        return f"<RetrieveSessions for {self._seconds:g} s in {self._store!r}>"


def scoped(identity: str, session_id: str, tenant: Tenant | None = None) -> str:
    """The session id that engines receive: stable, different for each tenant, and not reversible to the caller's own
    id."""
    # A digest: an id that a caller chose may carry personal data, which engines need not see.
    owner = identity if tenant is None else f"{identity}\0{tenant.id}"
    return blake2b(f"{owner}\0{session_id}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def scoped_key(key: str, tenant: Tenant) -> str:
    """The `idempotencyKey` that engines receive, so that equal keys of two tenants are two calls."""
    return blake2b(f"{tenant.id}\0{key}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


# --- Origins of hits, for feedback (RCP §7.16) ---

ORIGINS = "origins:"

Known = dict[str, Mapping[str, Id]]
"""A hit's id as a string -> engine id -> the id by which that engine knows it."""


class HitOrigins:
    """Which engines the hits of a session came from. A session lives for `seconds` after its last response."""

    __slots__ = ("_max_hits", "_scope", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_hits: int, scope: str = "") -> None:
        """A session remembers at most `max_hits` hits; the oldest are evicted first. `scope` separates tenants."""
        self._scope = ORIGINS + scope
        self._store = store
        self._seconds = seconds
        self._max_hits = max_hits

    def for_tenant(self, tenant_id: str) -> "HitOrigins":
        """The sessions of one tenant; those of others are invisible to it."""
        return HitOrigins(self._store, self._seconds, self._max_hits, f"{tenant_id}:")

    async def load(self, session_id: str) -> Mapping[str, Mapping[str, Id]]:
        """A hit's id as a string -> engine id -> the id by which that engine knows it."""
        return await self._store.get(self._scope + session_id, _unchanged) or {}

    async def remember(self, session_id: str, origins: Mapping[str, Mapping[str, Id]]) -> None:
        """Record that these hits were returned in this session. Renews the lifetime of the session."""

        def change(before: Known | None) -> Known:
            known = {**(before or {})}
            for hit_id, owners in origins.items():
                # Removed and inserted again, so that the oldest entries come first.
                known[hit_id] = {**known.pop(hit_id, {}), **owners}
            # Dicts keep insertion order, so the first keys are the oldest.
            for hit_id in list(islice(known, max(0, len(known) - self._max_hits))):
                del known[hit_id]
            return known

        await self._store.change(self._scope + session_id, change, self._seconds, _unchanged, _unchanged, size=_size)

    def __repr__(self) -> str:
        return f"<HitOrigins for {self._seconds:g} s in {self._store!r}>"


# --- Poison reports (RCP §7.14) ---

REPORTS = "suspicion:"


class PoisonReports:
    """Hits that each tenant has reported. The reports of a tenant live for `seconds` after its last one."""

    __slots__ = ("_max_ids", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_ids: int) -> None:
        """Of each tenant at most `max_ids` reports are kept; the oldest are evicted first."""
        self._store = store
        self._seconds = seconds
        self._max_ids = max_ids

    async def report(self, tenant: str, ids: Iterable[str]) -> None:
        """Record that this tenant (empty: no tenants are configured) reports the hits of these ids as poisoned."""
        reported = dict.fromkeys(ids, True)

        def change(known: dict[str, bool] | None) -> dict[str, bool]:
            # A copy: the stored value may be in use by a screen at this moment.
            known = {**(known or {}), **reported}
            return dict(islice(known.items(), max(0, len(known) - self._max_ids), None))

        await self._store.change(REPORTS + tenant, change, self._seconds, _unchanged, _unchanged, size=_size)

    async def load(self, tenant: str) -> Container[str]:
        """The ids that this tenant has reported."""
        return await self._store.get(REPORTS + tenant, _unchanged) or {}

    def __repr__(self) -> str:
        return f"<PoisonReports for {self._seconds:g} s in {self._store!r}>"


# --- Recent hits, for MCP fetch ---

HIT = "hit:"


class RecentHits:
    """Hits returned lately, by id and tenant, so that MCP clients can fetch them."""

    __slots__ = ("_seconds", "_store")

    def __init__(self, store: Store, seconds: float) -> None:
        """A hit can be found for `seconds` after it was last returned."""
        self._store = store
        self._seconds = seconds

    @classmethod
    def from_settings(
        cls, settings: McpSettings, backend: StateBackend = IN_MEMORY, clock: Callable[[], float] = monotonic
    ) -> "RecentHits":
        """A store with the configured bounds, in `backend`."""
        most = settings.max_kept_hits
        return cls(backend.store("recent", MemoryStore(max(1, most), most, clock)), settings.fetch_ttl_seconds)

    async def keep(self, tenant: Tenant | None, hits: Mapping[str, Mapping[str, Any]]) -> None:
        """Record that these hits, by id, were returned to this tenant."""
        scope = _scope(tenant) + HIT
        writes = [
            self._store.put(scope + hit_id, hit, self._seconds, dict, size=_hit_size(hit))
            for hit_id, hit in hits.items()
        ]
        if isinstance(self._store, MemoryStore):
            # It never suspends, and a task for each hit would cost more than storing it.
            for write in writes:
                await write
        else:
            # All at once: with a shared store every write is a round trip.
            await asyncio.gather(*writes)

    async def find(self, tenant: Tenant | None, hit_id: str) -> Mapping[str, Any] | None:
        """The hit as it was last returned to this tenant; None if it was not, or not recently."""
        found: Mapping[str, Any] | None = await self._store.get(f"{_scope(tenant)}{HIT}{hit_id}", dict)
        return found

    def __repr__(self) -> str:
        return f"<RecentHits for {self._seconds:g} s in {self._store!r}>"


def _scope(tenant: Tenant | None) -> str:
    return "" if tenant is None else tenant.scope


def _hit_size(hit: Mapping[str, Any]) -> int:
    text = hit.get("text")
    # One unit per KiB, so that the bound of the store also bounds its memory.
    return 1 + (len(text) if type(text) is str else len(repr(hit.get("content")))) // 1024


def _size(entries: Mapping[str, Any]) -> int:
    return len(entries) + 1


def _unchanged(value: Any) -> Any:
    return value
