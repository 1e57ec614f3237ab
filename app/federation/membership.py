"""The engines of the federation at this moment, and the advertisement merged from theirs, cached until one changes.

A request works on one frozen Members value from start to end. Each tenant has its own, which holds only the engines
it may see. The merged advertisement follows configuration and handshakes, never health (decision 2).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.federation.capabilities import EVERY_EXTENSION, EngineOffer, excluded_fields, merge
from app.federation.engine_interface import Engine
from app.federation.session_engines import SessionEngines, engines_of
from app.federation.tenants import Tenant

ROUTABLE = frozenset(
    {"retrieve", "filter", "citations", "catalog", "streaming", "log", "pagination", "session"}
    | {"embed", "sparseEmbed", "multiVector", "rerank", "transform", EVERY_EXTENSION}
    | {"graph", "memory", "feedback"}
)
"""Capabilities that this gateway can route; no others are advertised."""

WRITING = frozenset({"index"})
"""Capabilities that are routed only if the settings allow writing."""


MAX_VIEWS = 1000
"""Number of cached views, one for each distinct set of visible engines; beyond it the oldest are evicted."""

View = tuple[tuple[str, ...], frozenset[str], str]
"""What determines what tenants see: the patterns of their engines, their roles, and their id if sources limit it."""

EVERYTHING: View | None = None
"""The view of a gateway without tenants."""


OUTDATED = -1
"""A version that no registry has: a view with it is computed again."""


class Engines(Protocol):
    """The registry, by priority (highest first), then by id; `version` grows with every changed advertisement."""

    @property
    def version(self) -> int: ...

    @property
    def asked(self) -> Sequence[Engine]: ...

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Gateway -> those of its engines that are asked directly."""
        ...

    @property
    def disabled(self) -> Sequence[str]: ...

    @property
    def stand_ins(self) -> Sequence[Engine]:
        """Engines that a reload has just removed, while those it added have not completed a handshake yet."""
        ...

    @property
    def warming(self) -> Collection[str]:
        """Ids of engines that have not completed their first handshake since a reload."""
        ...


@dataclass(frozen=True, slots=True)
class Members:
    """The federation as one request sees it."""

    identity: str
    """The gateway's own id in `_meta.federation.path`."""
    engines: Sequence[Engine]
    disabled: Sequence[str]
    capabilities: Mapping[str, Any]
    """The merged advertisement."""
    offers: Sequence[EngineOffer]
    max_k: int
    """Largest `k` served: `retrieve.maxK` of the advertisement, or the setting while no engine advertises one."""
    excluded_fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Engine id -> filter fields it must not be asked for, because engines of higher priority use another type."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Gateway -> its engines that are asked directly. In requests, its name stands for them."""
    epoch: int = 1
    """How often this advertisement has changed."""

    def visible_state(self) -> tuple[Any, ...]:
        """What callers can see of it; the epoch grows when this changes."""
        return tuple(engine.id for engine in self.engines), self.disabled, self.offers, self.groups

    def ids(self) -> frozenset[str]:
        """Every id of the registry, including disabled engines."""
        return frozenset(engine.id for engine in self.engines) | frozenset(self.disabled)


class Membership:
    """Hands out the current Members of each tenant."""

    __slots__ = (
        "_engines",
        "_identity",
        "_learning",
        "_max_k",
        "_only_for",
        "_rerank_union",
        "_routable",
        "_session_seconds",
        "_sessions",
        "_views",
    )

    def __init__(
        self,
        engines: Engines,
        identity: str,
        max_k: int,
        session_seconds: int = 1800,
        *,
        writing: bool = False,
        rerank_union: bool = True,
        learning: bool = False,
    ) -> None:
        """`max_k` bounds the advertised `maxK`; sessions are remembered for `session_seconds`.

        `writing`: whether engines' indexes may be written to; `rerank_union`: whether the gateway has fused results
        reranked by one engine; `learning`: whether the gateway itself learns from feedback, so that `feedback` is
        offered even if no engine takes any.
        """
        self._engines = engines
        self._identity = identity
        self._max_k = max_k
        self._routable = ROUTABLE | WRITING if writing else ROUTABLE
        self._session_seconds = session_seconds
        self._learning = learning
        self._rerank_union = rerank_union
        self._only_for: Callable[[str], frozenset[str] | None] | None = None
        self._views: dict[View | None, tuple[int, Members]] = {}
        self._sessions: dict[tuple[View | None, str], tuple[Members, Members]] = {}
        """(view, digest of a session's engines) -> (the current Members, the Members of the session)."""

    @property
    def identity(self) -> str:
        """The gateway's current id (RCP §16)."""
        return self._identity

    def renew(self, identity: str, max_k: int, *, writing: bool = False, learning: bool = False) -> None:
        """Apply changed settings: the next request gets Members computed from them."""
        self._identity = identity
        self._max_k = max_k
        self._learning = learning
        self._routable = ROUTABLE | WRITING if writing else ROUTABLE
        # Kept as the previous value, so that the epoch grows only if something visible changed.
        self._views = {seen: (OUTDATED, members) for seen, (_, members) in self._views.items()}

    def limit(self, only_for: Callable[[str], frozenset[str] | None] | None) -> None:
        """Apply the tenants of sources: `only_for` gives the only tenants that may see an engine, None for no limit."""
        self._only_for = only_for

    def _view_of(self, tenant: Tenant) -> View:
        # Tenants with equal patterns and roles share a view, unless a source distinguishes them.
        return tenant.engines, tenant.roles, "" if self._only_for is None else tenant.id

    def current(self, tenant: Tenant | None = None) -> Members:
        """The Members of this tenant; the same object until an advertisement visible to it changes."""
        seen = EVERYTHING if tenant is None else self._view_of(tenant)
        version = self._engines.version
        # One dict lookup per request in the usual case.
        view = self._views.get(seen)
        if view is not None and view[0] == version:
            return view[1]
        members = self._compute(tenant, None if view is None else view[1])
        # Inserted again, so that the oldest view is first in the dict.
        self._views.pop(seen, None)
        self._views[seen] = (version, members)
        if len(self._views) > MAX_VIEWS:
            del self._views[next(iter(self._views))]
        return members

    def of_session(self, tenant: Tenant | None, session: SessionEngines) -> Members:
        """The Members of a session that began with these engines: without engines that joined later, and with
        engines that have left, calls to which fail."""
        now = self.current(tenant)
        seen = (EVERYTHING if tenant is None else self._view_of(tenant), session.digest)
        kept = self._sessions.get(seen)
        if kept is not None and kept[0] is now:
            return kept[1]
        members = now
        # The usual case: nothing has changed since the session began.
        if now.offers != session.offers:
            members = self._build(tenant, engines_of(session, now.engines), now.epoch)
        self._sessions.pop(seen, None)
        self._sessions[seen] = (now, members)
        if len(self._sessions) > MAX_VIEWS:
            del self._sessions[next(iter(self._sessions))]
        return members

    @property
    def epoch(self) -> int:
        """How often the complete advertisement has changed."""
        return self.current().epoch

    def sees(self, tenant: Tenant, engine_id: str) -> bool:
        """Whether the tenant may see this engine, or the gateway through which it joined."""
        if self._only_for is not None:
            # The rail of a source holds however wide the tenant's patterns are.
            only = self._only_for(engine_id)
            if only is not None and tenant.id not in only:
                return False
        if tenant.sees(engine_id):
            return True
        return any(engine_id in joined and tenant.sees(gateway) for gateway, joined in self._engines.groups.items())

    def _compute(self, tenant: Tenant | None, before: Members | None) -> Members:
        engines = tuple(engine for engine in self._engines.asked if tenant is None or self.sees(tenant, engine.id))
        # A reload must not cost an answer (decision 13).
        if self._engines.stand_ins:
            engines = self._with_stand_ins(engines, tenant)
        members = self._build(tenant, engines, 1)
        if before is None:
            return members
        # Clients poll the epoch, so it must not grow without a visible change.
        return replace(members, epoch=before.epoch + (members.visible_state() != before.visible_state()))

    def _build(self, tenant: Tenant | None, engines: Sequence[Engine], epoch: int) -> Members:
        disabled = tuple(name for name in self._engines.disabled if tenant is None or self.sees(tenant, name))
        offers = tuple(
            EngineOffer(engine.id, engine.entry.priority, engine.advertisement, engine.entry.writer)
            for engine in engines
            if engine.advertisement is not None
        )
        groups = self._engines.groups if tenant is None else self._groups_of(tenant)
        routable = self._routable
        if tenant is not None:
            # A tenant is not offered what its roles forbid.
            routable = frozenset(capability for capability in routable if tenant.may_use(capability))
        # What the gateway does itself, whatever the engines offer.
        ours: dict[str, Any] = {"fusion": ["rrf", "weighted", "convex"], "tokenBudget": True}
        if self._rerank_union and any(offer.advertisement.offers("rerank") for offer in offers if offer.advertisement):
            ours["rerankBuiltin"] = True
        capabilities = merge(
            offers, max_k=self._max_k, routable=routable, ours=ours, session_seconds=self._session_seconds
        )
        retrieve = capabilities.get("retrieve")
        if self._learning and retrieve and "feedback" in routable:
            capabilities.setdefault("feedback", {})
        return Members(
            identity=self._identity,
            engines=engines,
            disabled=disabled,
            capabilities=capabilities,
            offers=offers,
            max_k=retrieve["maxK"] if retrieve else self._max_k,
            excluded_fields=excluded_fields(offers),
            groups=groups,
            epoch=epoch,
        )

    def _with_stand_ins(self, engines: Sequence[Engine], tenant: Tenant | None) -> tuple[Engine, ...]:
        """If a reload replaced all engines that served this tenant, also the old ones, until a new one is warm."""
        warm = [engine.advertisement for engine in engines if engine.advertisement is not None]
        # A new engine that cannot retrieve does not replace old ones that can.
        retrieving = any(advertisement.retrieve is not None for advertisement in warm)
        if not any(tenant is None or self.sees(tenant, engine_id) for engine_id in self._engines.warming):
            return tuple(engines)
        standing_in = [
            engine
            for engine in self._engines.stand_ins
            if (tenant is None or self.sees(tenant, engine.id))
            and engine.advertisement is not None
            and (not warm or (not retrieving and engine.advertisement.retrieve is not None))
        ]
        return tuple(sorted((*engines, *standing_in), key=lambda engine: (-engine.entry.priority, engine.id)))

    def _groups_of(self, tenant: Tenant) -> Mapping[str, Sequence[str]]:
        """The gateways that this tenant sees, and the engines that joined through them."""
        return {gateway: joined for gateway, joined in self._engines.groups.items() if self.sees(tenant, gateway)}

    def __repr__(self) -> str:
        members = self.current()
        return (
            f"<Membership {self._identity} epoch {members.epoch}, {len(members.offers)} advertisements, "
            f"{len(self._views)} views>"
        )
