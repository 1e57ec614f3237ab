"""The answer cache: equal `retrieve` requests share one fan-out, and answers are kept for a short time.

Each tenant has its own answers. The key of an answer contains everything that decides it, so a change of engines,
settings or rights needs no purge: the old key is never asked for again (docs/explanation/answer-cache.md).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from app.federation.calls import RetrieveCall
from app.federation.engine_interface import Engine
from app.federation.membership import Members
from app.federation.pagination import Pages
from app.federation.request_options import requested_engines
from app.federation.response import note
from app.federation.retrieve import RetrieveAnswer, fusion_settings_of
from app.federation.tenants import Tenant
from app.protocol.envelope import canonical, dumps, loads
from app.protocol.errors import BackendUnavailable, DeadlineExceeded, InvalidParams, RcpError
from app.resilience.single_flight import SingleFlight
from app.settings.schema import GatewaySettings
from app.settings.state import CacheSettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store
from app.telemetry.cache_metrics import CACHE_STATUSES, CacheMetrics

Result = dict[str, Any]
Ask = Callable[[RetrieveCall], Coroutine[Any, Any, RetrieveAnswer]]
"""Asks the engines. Raises RcpError."""

MAX_ENTRIES: Final = 1_000_000
ENTRY_BYTES: Final = 600
"""Memory of a cached answer beside its bytes: key, record and bookkeeping, measured."""

VERSION_BYTES: Final = 100
"""The same for each engine that states the version of its index."""

MAX_CONTEXTS: Final = 1000
"""Tenants whose digests are kept; for others they are computed again."""

EMPTY_SHARE: Final = 0.25
"""Share of the lifetime for answers without hits: somebody may be indexing what is missing."""

PURGES: Final = "purges"
PURGE_SECONDS: Final = 30 * 86_400.0
"""Lifetime of the purge counters; longer than any answer lives."""

ALL: Final = "*"

Counters = Mapping[str, int]
"""Scope of a purge -> how often it was purged."""


class CachedAnswer(NamedTuple):
    """One kept answer."""

    body: bytes
    """The result as JSON."""
    fetched: float
    """Unix time at which the engines had answered."""
    ttl: float
    """Seconds."""
    engines: tuple[str, ...]
    """Ids of the engines that were asked."""
    versions: Mapping[str, str]
    """Engine id -> the `indexVersion` that it answered from."""
    purges: int
    """Purges that concern this answer, counted before the engines were asked."""


class _Context(NamedTuple):
    """What decides the answers to one tenant, apart from the params of a request."""

    tenant: Tenant | None
    members: Members
    settings: GatewaySettings
    digest: bytes
    ttl: float


class _Shared(NamedTuple):
    """What the callers of one fan-out share."""

    answer: RetrieveAnswer
    fetched: float


class AnswerCache:
    """The cached answers and shared fan-outs of one process."""

    __slots__ = (
        "_answers",
        "_busy",
        "_clock",
        "_contexts",
        "_counts",
        "_evicted",
        "_flights",
        "_local",
        "_metrics",
        "_oldest_stale",
        "_purges",
        "_refreshing",
        "_shared",
        "_versions",
    )

    def __init__(
        self,
        settings: CacheSettings,
        metrics: CacheMetrics | None = None,
        backend: StateBackend = IN_MEMORY,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`busy`: whether requests wait for admission; nothing is fetched in advance then. `clock`: Unix time, because
        processes share answers."""
        self._local = MemoryStore(MAX_ENTRIES, settings.max_bytes)
        self._shared = shared = settings.shared
        self._answers: Store = backend.store("cache", self._local) if shared else self._local
        purges = MemoryStore(1, 1)
        self._purges: Store = backend.store("cache", purges) if shared else purges
        self._flights: SingleFlight[_Shared] = SingleFlight(
            settings.join_ms / 1000, ended=None if metrics is None else metrics.shared
        )
        self._metrics = metrics
        self._busy = busy
        self._clock = clock
        self._contexts: dict[str | None, _Context] = {}
        """Tenant id -> what decides its answers; None without tenants."""
        self._versions: dict[str, str] = {}
        """Engine id -> the `indexVersion` of its latest answer."""
        self._refreshing: set[asyncio.Task[None]] = set()
        self._evicted = 0
        self._counts = dict.fromkeys(CACHE_STATUSES, 0)
        self._oldest_stale = 0.0
        """Age of the oldest answer that was served after its lifetime, in seconds."""

    def renew(self, settings: CacheSettings) -> None:
        """Apply changed settings. `shared` is read only at the start."""
        self._local.max_size = settings.max_bytes
        self._flights.join_seconds = settings.join_ms / 1000

    async def answer(
        self,
        call: RetrieveCall,
        members: Members,
        settings: GatewaySettings,
        pages: Pages,
        ask: Ask,
        *,
        streamed: bool = False,
    ) -> Result:
        """The result of one `retrieve`, from the cache if possible. `streamed`: its progress is sent. Raises RcpError.

        Only for callers for whom the cache is `enabled`.
        """
        context = self._context(call, members, settings)
        wanted = call.params.gateway.cache or "use"
        if wanted == "refresh" and call.tenant is not None and not call.tenant.cache.refresh:
            raise InvalidParams("'x-gateway.cache' may not be 'refresh' for this tenant", field="x-gateway.cache")
        reason = _bypass_reason(call, members, streamed=streamed)
        if reason is not None:
            return await self._bypass(call, context, ask, reason)
        key = _key(call, context)
        counters = await self._purges.get(PURGES, _unchanged) or {}
        kept = None if wanted == "refresh" else await self._answers.get(key, _load)
        if kept is not None and not self._valid(kept, counters, call.tenant_id):
            kept = None
        age = 0.0 if kept is None else max(0.0, self._clock() - kept.fetched)
        grace = settings.cache
        if kept is not None and age <= kept.ttl + grace.stale_while_revalidate_seconds:
            stale = age > kept.ttl
            result = await self._served(call, pages, kept, age, "stale" if stale else "hit")
            if result is not None:
                if stale:
                    self._stale("revalidate", age)
                    self._refresh(key, call, context, ask, counters)
                return result
        if not _may_share(call, members, settings):
            return await self._bypass(call, context, ask, "deadline")
        if wanted == "refresh":
            self._flights.retire(key.encode())  # a fan-out that is under way began before this request
        try:
            shared, joined = await self._flights.run(
                key.encode(), lambda: self._fetch(key, call, context, ask, counters)
            )
        except (BackendUnavailable, DeadlineExceeded):
            if kept is None or age > kept.ttl + grace.stale_if_error_seconds:
                raise
            result = await self._served(call, pages, kept, age, "stale")
            if result is None:
                raise
            self._stale("error", age)
            return result
        return await self._own(call, pages, shared, joined=joined)

    async def purge(self, *scopes: str) -> None:
        """Forget answers: of all (`*`), of an `engine:<id>`, or of a `tenant:<id>`. Fan-outs under way are not kept."""
        # Other processes may have kept answers even if this one has not.
        if not scopes or not (self._contexts or self._shared):
            return

        def raised(counters: dict[str, int] | None) -> dict[str, int]:
            return {**(counters or {}), **{scope: (counters or {}).get(scope, 0) + 1 for scope in scopes}}

        await self._purges.change(PURGES, raised, PURGE_SECONDS, _unchanged, _unchanged, size=lambda counters: 1)
        self._flights.retire_all()

    def state(self, settings: CacheSettings) -> dict[str, Any]:
        """What operators see of this process: settings, requests by status since the start, entries, bytes."""
        return {
            "enabled": settings.enabled,
            "ttlSeconds": settings.ttl_seconds,
            "shared": self._shared,
            "requests": dict(self._counts),
            "oldestStaleMs": round(self._oldest_stale * 1000),
            "entries": len(self._local),
            "bytes": self._local.size,
            "maxBytes": self._local.max_size,
            "evictions": self._local.evicted,
        }

    async def close(self) -> None:
        """Cancel fan-outs that no caller waits for."""
        for task in self._refreshing:
            task.cancel()
        await asyncio.gather(*self._refreshing, return_exceptions=True)
        await self._flights.close()

    # --- Fetch ---

    async def _fetch(self, key: str, call: RetrieveCall, context: _Context, ask: Ask, counters: Counters) -> _Shared:
        """Ask the engines and keep the answer, in a task for all callers. `counters`: the purges before."""
        cache = context.settings.cache
        answer = await ask(call)
        # Cached answers from other versions of an engine's index are not served again.
        self._versions.update(answer.versions)
        fetched = self._clock()
        if answer.complete and context.ttl > 0:
            body = _written(answer.result)
            if body is not None and len(body) <= cache.max_answer_bytes:
                ttl = context.ttl if answer.result["hits"] else context.ttl * EMPTY_SHARE
                purges = _purges_of(counters, answer.engines, call.tenant_id)
                kept = CachedAnswer(body, fetched, ttl, answer.engines, answer.versions, purges)
                grace = max(cache.stale_while_revalidate_seconds, cache.stale_if_error_seconds)
                await self._answers.put(key, kept, ttl + grace, _dump, size=_size(kept))
                self._report()
        return _Shared(answer, fetched)

    def _refresh(self, key: str, call: RetrieveCall, context: _Context, ask: Ask, counters: Counters) -> None:
        """Fetch a new answer in the background, unless requests wait for admission."""
        if self._busy():
            return
        now = asyncio.get_running_loop().time()
        # The caller that has been served the old answer does not wait, so its deadline does not count.
        call = replace(call, started=now, deadline=now + context.settings.retrieve.deadline_ms / 1000)

        async def refresh() -> None:
            with suppress(RcpError):  # the next request tries again, or is served the old answer
                await self._flights.run(key.encode(), lambda: self._fetch(key, call, context, ask, counters))

        task = asyncio.create_task(refresh())
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)

    async def _bypass(self, call: RetrieveCall, context: _Context, ask: Ask, reason: str) -> Result:
        answer = await ask(call)
        self._versions.update(answer.versions)
        mark: dict[str, Any] = {"status": "bypass", "reason": reason}
        if call.params.gateway.explain:
            mark["key"] = _describe_key(call, context)
        _gateway_part(answer.result)["cache"] = mark
        self._count("bypass", reason)
        return answer.result

    # --- Serve ---

    async def _served(
        self, call: RetrieveCall, pages: Pages, kept: CachedAnswer, age: float, status: str
    ) -> Result | None:
        """The kept answer for this caller; None if its next page is gone."""
        result: Result = loads(kept.body)
        if not await _with_own_cursor(result, call, pages):
            return None
        for engine in _gateway_part(result).get("engines", ()):
            if engine.get("status") == "ok":
                engine["cached"] = True
        note(result, f"answered from what was fetched {age:.0f} s ago")
        return self._marked(result, call, status, age)

    async def _own(self, call: RetrieveCall, pages: Pages, shared: _Shared, *, joined: bool) -> Result:
        """A copy of what several callers wait for, as this caller's answer."""
        result = _copied(shared.answer.result)
        if joined and not await _with_own_cursor(result, call, pages):
            del result["nextCursor"]
        age = max(0.0, self._clock() - shared.fetched)
        return self._marked(result, call, "joined" if joined else "miss", age)

    def _marked(self, result: Result, call: RetrieveCall, status: str, age: float) -> Result:
        _gateway_part(result)["cache"] = {"status": status, "ageMs": round(age * 1000)}
        took = asyncio.get_running_loop().time() - call.started
        result["usage"]["latencyMs"] = round(max(0.0, took) * 1000, 2)
        self._count(status)
        return result

    def _valid(self, kept: CachedAnswer, counters: Mapping[str, int], tenant: str | None) -> bool:
        """Whether the answer was not purged, and no engine has answered from another version of its index since."""
        if kept.purges != _purges_of(counters, kept.engines, tenant):
            return False
        versions = self._versions
        return all(versions.get(engine, version) == version for engine, version in kept.versions.items())

    def _context(self, call: RetrieveCall, members: Members, settings: GatewaySettings) -> _Context:
        tenant = call.tenant_id
        context = self._contexts.get(tenant)
        # All three are replaced as a whole when something changes, so identity is enough.
        if (
            context is None
            or context.tenant is not call.tenant
            or context.members is not members
            or context.settings is not settings
        ):
            digest, ttl = _digest(call, members, settings), _ttl(call, members, settings)
            context = _Context(call.tenant, members, settings, digest, ttl)
            # Inserted again, so that the first one is the tenant that was not computed for the longest time.
            self._contexts.pop(tenant, None)
            self._contexts[tenant] = context
            if len(self._contexts) > MAX_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
        return context

    # --- Count ---

    def _count(self, status: str, reason: str | None = None) -> None:
        self._counts[status] += 1
        if self._metrics is not None:
            self._metrics.answered(status, reason)

    def _stale(self, why: str, age: float) -> None:
        self._oldest_stale = max(self._oldest_stale, age)
        if self._metrics is not None:
            self._metrics.stale(why)

    def _report(self) -> None:
        if self._metrics is not None:
            evicted = self._local.evicted
            self._metrics.holds(len(self._local), self._local.size, evicted - self._evicted)
            self._evicted = evicted

    def __repr__(self) -> str:
        return f"<AnswerCache {self._local!r}, {self._flights!r}>"


def enabled(call: RetrieveCall, settings: GatewaySettings) -> bool:
    """Whether the cache is in use for this caller."""
    own = None if call.tenant is None else call.tenant.cache.enabled
    return settings.cache.enabled if own is None else own


def _bypass_reason(call: RetrieveCall, members: Members, *, streamed: bool) -> str | None:
    """Why the answer can neither be taken from the cache nor shared; None if it can. Raises InvalidParams."""
    options, gateway, meta = call.params.options, call.params.gateway, call.meta
    if gateway.cache == "no":
        return "request"
    if options.session_id is not None:
        return "session"
    if options.cursor is not None:
        return "cursor"
    if streamed:
        return "stream"
    if meta.progress_token is not None or meta.log_level is not None:
        return "progress"
    if gateway.explain:
        return "explain"
    # Without a pinned snapshot, a seed asks for another draw of the same question.
    if options.seed is not None and options.index_version is None:
        return "seed"
    if meta.path:
        return "federation"  # the gateway above keeps its own answers
    if not all(engine.entry.cacheable for engine in _concerned(call, members)):
        return "engine"
    return None


def _may_share(call: RetrieveCall, members: Members, settings: GatewaySettings) -> bool:
    """Whether the deadline shortens no engine call, so that equal requests have the same plan."""
    asked = call.meta.deadline_ms
    if asked is None or asked >= settings.retrieve.deadline_ms:
        return True
    longest = max((engine.entry.timeout_ms for engine in _concerned(call, members)), default=0)
    return asked >= longest + settings.retrieve.reserve_ms


def _concerned(call: RetrieveCall, members: Members) -> list[Engine]:
    """The engines that may be asked. Raises InvalidParams."""
    named = requested_engines(call.params.gateway, members)
    return [engine for engine in members.engines if named is None or engine.id in named]


def _ttl(call: RetrieveCall, members: Members, settings: GatewaySettings) -> float:
    """Seconds: the shortest lifetime that the gateway, the tenant and its engines allow."""
    times = [settings.cache.ttl_seconds]
    if call.tenant is not None and call.tenant.cache.ttl_seconds is not None:
        times.append(call.tenant.cache.ttl_seconds)
    times += [engine.entry.cache_ttl_ms / 1000 for engine in members.engines if engine.entry.cache_ttl_ms is not None]
    return min(times)


def _digest(call: RetrieveCall, members: Members, settings: GatewaySettings) -> bytes:
    """A digest of tenant, engines, advertisements and settings, equal in all processes of one configuration."""
    tenant = call.tenant
    parts = [
        members.identity,
        None if tenant is None else [tenant.id, sorted(tenant.engines), sorted(tenant.roles), dict(tenant.weights)],
        fusion_settings_of(call, settings).model_dump(mode="json"),
        None if tenant is None else tenant.select_mode,
        settings.retrieve.model_dump(mode="json"),
        settings.select.model_dump(mode="json"),
        settings.screen.model_dump(mode="json"),
        members.max_k,
        [[engine.entry.model_dump(mode="json"), _advertised(engine)] for engine in members.engines],
    ]
    return sha256(canonical(parts)).digest()


def _advertised(engine: Engine) -> Any:
    advertisement = engine.advertisement
    return None if advertisement is None else [advertisement.server, advertisement.capabilities]


def _key(call: RetrieveCall, context: _Context) -> str:
    return sha256(context.digest + _params_digest(call)).hexdigest()


def _params_digest(call: RetrieveCall) -> bytes:
    options = call.params.gateway.model_dump(exclude_none=True, exclude={"cache", "report"})
    return sha256(canonical([call.params.k, call.params.raw, options])).digest()


def _describe_key(call: RetrieveCall, context: _Context) -> dict[str, Any]:
    """The parts of the key, for a response that explains itself."""
    return {
        "tenant": call.tenant_id,
        "configuration": context.digest.hex()[:12],
        "params": _params_digest(call).hex()[:12],
        "ttlSeconds": context.ttl,
    }


def _purges_of(counters: Mapping[str, int], engines: tuple[str, ...], tenant: str | None) -> int:
    """Purges so far that concern an answer of these engines to this tenant. It only grows, so the sum identifies it."""
    total = counters.get(ALL, 0) + counters.get(f"tenant:{tenant}", 0)
    return total + sum([counters.get(f"engine:{engine}", 0) for engine in engines]) if counters else 0


async def _with_own_cursor(result: Result, call: RetrieveCall, pages: Pages) -> bool:
    """Give the result a cursor of its own; whether it still can be continued, if it could."""
    cursor = result.get("nextCursor")
    if cursor is None:
        return True
    pages = pages if call.tenant is None else pages.for_tenant(call.tenant)
    own = await pages.copy_cursor(cursor, call.params)
    if own is None:
        return False
    result["nextCursor"] = own
    return True


def _gateway_part(result: Result) -> dict[str, Any]:
    part: dict[str, Any] = result["_meta"]["x-gateway"]
    return part


def _copied(result: Result) -> Result:
    """A copy whose parts that differ by caller can be changed. Hits are shared: nothing changes them any more."""
    meta = result["_meta"]
    usage = dict(result["usage"])
    if "notes" in usage:
        usage["notes"] = list(usage["notes"])
    return {**result, "usage": usage, "_meta": {**meta, "x-gateway": dict(meta["x-gateway"])}}


def _written(result: Result) -> bytes | None:
    try:
        return dumps(result)
    except TypeError:  # an integer of an engine that JSON libraries cannot write; the caller gets its own error
        return None


def _size(kept: CachedAnswer) -> int:
    return len(kept.body) + ENTRY_BYTES + 16 * len(kept.engines) + VERSION_BYTES * len(kept.versions)


def _unchanged(value: Any) -> Any:
    return value


def _dump(kept: CachedAnswer) -> list[Any]:
    body, fetched, ttl, engines, versions, purges = kept
    return [body.decode(), fetched, ttl, engines, dict(versions), purges]


def _load(plain: list[Any]) -> CachedAnswer:
    body, fetched, ttl, engines, versions, purges = plain
    return CachedAnswer(body.encode(), fetched, ttl, tuple(engines), versions, purges)
