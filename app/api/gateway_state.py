"""The parts of one running gateway that its endpoints use, and whether it is ready.

The composition root builds them and a reload replaces them in one step; endpoints read them for each request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.api.admission import Admission
from app.api.auth.authentication import Authenticator
from app.api.caller import Caller
from app.engines.registry import EngineSet
from app.federation.answer_cache import AnswerCache
from app.federation.capabilities import EngineOffer
from app.federation.engine_selection import EngineSelector
from app.federation.idempotency import Idempotency
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Membership
from app.federation.pagination import Pages
from app.federation.sessions import RecentHits
from app.resilience.byte_budget import ByteBudget
from app.settings.mcp import McpSettings
from app.settings.schema import EnginesSettings, GatewaySettings
from app.settings.state import CacheSettings, StateSettings
from app.state.secret import DeploymentSecret
from app.state.store import IN_MEMORY, StateBackend
from app.telemetry.metrics import Metrics


class Readiness:
    """Whether traffic should come here (decision 9): once an engine has been reached, until draining starts.

    It never follows engine health afterwards.
    """

    __slots__ = ("_backend", "_engines", "_reached", "draining")

    def __init__(self, engines: EngineSet, backend: StateBackend = IN_MEMORY) -> None:
        self._engines = engines
        self._backend = backend
        self._reached = False
        self.draining = False

    def reason(self) -> str | None:
        """Why this gateway is not ready, or None if it is."""
        if self.draining:
            return "draining"
        if not self._reached:
            self._reached = self._engines.reached
        return None if self._reached else "no engine has completed a handshake yet"

    @property
    def degraded(self) -> bool:
        """Whether an engine is down or what gateways share not at hand; said, but no reason not to be ready."""
        return self._backend.degraded or not all(engine.up for engine in self._engines.engines)

    def __repr__(self) -> str:
        return f"<Readiness {self.reason() or 'ready'}{', degraded' if self.degraded else ''}>"


@dataclass(slots=True)
class GatewayState:
    """The parts of one running gateway that the doors use; `settings` are those that hold now."""

    version: str
    settings: GatewaySettings
    engines: EngineSet
    membership: Membership
    instrumentation: RetrieveInstrumentation
    metrics: Metrics
    readiness: Readiness
    admission: Admission
    answer_bytes: ByteBudget = field(default_factory=lambda: ByteBudget(EnginesSettings().max_held_bytes))
    """What requests under way hold of engines' answers."""
    authenticator: Authenticator | None = None
    """Who tells callers apart; None: nobody does."""
    pages: Pages = field(default_factory=lambda: Pages.from_settings(StateSettings()))
    idempotency: Idempotency = field(default_factory=lambda: Idempotency.from_settings(StateSettings()))
    recent: RecentHits = field(default_factory=lambda: RecentHits.from_settings(McpSettings()))
    secret: DeploymentSecret = field(default_factory=lambda: DeploymentSecret(None, None))
    """Key of the names that tenants are given."""
    selector: EngineSelector = field(default_factory=EngineSelector)
    """Chooses the engines of a request, if engine selection is in use."""
    answers: AnswerCache = field(default_factory=lambda: AnswerCache(CacheSettings()))
    """Cached answers, and equal requests that share one fan-out."""
    backend: StateBackend = IN_MEMORY
    """With whom it shares what outlives a request."""

    def offers(self, caller: Caller) -> Sequence[EngineOffer]:
        """What the engines that a caller speaks to offer now."""
        if caller.engine is None:
            return self.membership.current(caller.tenant).offers
        return [
            EngineOffer(engine.id, engine.entry.priority, engine.advertisement, engine.entry.writer)
            for engine in self.engines.engines
            if engine.id == caller.engine and engine.advertisement is not None
        ]

    def renew(self, settings: GatewaySettings, fingerprint: str) -> None:
        """Let other settings hold, and the engines that the living set has now: from the next request on.

        `fingerprint` tells the registry; requests under way go on as they began.
        """
        self.settings = settings
        self.admission.renew(settings.server)
        self.answer_bytes.limit = settings.engines.max_held_bytes
        self.answers.renew(settings.cache)
        self.membership.renew(
            identity_of(settings, fingerprint),
            settings.retrieve.max_k,
            writing=settings.index.enabled,
            learning=settings.fusion.learning == "on",
        )


def identity_of(settings: GatewaySettings, fingerprint: str) -> str:
    """What a gateway is called in `_meta.federation.path` (RCP §16): as it is told, or by its name and registry."""
    return settings.server.id or f"{settings.server.name}-{fingerprint}"
