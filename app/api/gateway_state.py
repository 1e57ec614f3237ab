"""The state of one running gateway that its endpoints share, and its readiness.

`app/main.py` builds it and a reload changes it in one step. Endpoints read it for each request.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.api.admission import Admission
from app.api.auth.authentication import Authenticator
from app.api.caller import Caller
from app.api.shared_switches import SharedSwitches
from app.engines.registry import EngineSet
from app.federation.answer_cache import AnswerCache
from app.federation.capabilities import EngineOffer
from app.federation.engine_selection import EngineSelector
from app.federation.idempotency import Idempotency
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Membership
from app.federation.pagination import Pages
from app.federation.sessions import RecentHits
from app.federation.shadows import Shadows
from app.resilience.byte_budget import ByteBudget
from app.settings.mcp import McpSettings
from app.settings.schema import EnginesSettings, GatewaySettings
from app.settings.state import CacheSettings, StateSettings
from app.state.secret import DeploymentSecret
from app.state.store import IN_MEMORY, StateBackend
from app.telemetry.metrics import Metrics


class Readiness:
    """Whether to send traffic to this gateway: from the first reached engine until draining starts.

    It does not follow engine health: if all engines are down, another gateway cannot reach them either.
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
        # Never reset: readiness must not follow engine health (see above).
        if not self._reached:
            self._reached = self._engines.reached
        return None if self._reached else "no engine has completed a handshake yet"

    @property
    def degraded(self) -> bool:
        """Whether an engine or the shared state is unavailable. It is reported, and does not affect readiness."""
        return self._backend.degraded or not all(
            engine.up for engine in self._engines.engines if engine.entry.shadow is None
        )

    def __repr__(self) -> str:
        return f"<Readiness {self.reason() or 'ready'}{', degraded' if self.degraded else ''}>"


PARTIAL_ANSWERS = 100
"""Partial answers that are remembered for the console's incident summary."""


class PartialAnswer(NamedTuple):
    """One answer that lacked engines."""

    at: float
    """Unix time."""
    request_id: str
    method: str
    missing: tuple[str, ...]
    """Ids of the engines that failed."""


@dataclass(slots=True)
class GatewayState:
    """The parts of one running gateway; `settings` are those in force."""

    version: str
    settings: GatewaySettings
    engines: EngineSet
    membership: Membership
    instrumentation: RetrieveInstrumentation
    metrics: Metrics
    readiness: Readiness
    admission: Admission
    answer_bytes: ByteBudget = field(default_factory=lambda: ByteBudget(EnginesSettings().max_held_bytes))
    """Limits the bytes of engine responses that requests in flight keep in memory."""
    authenticator: Authenticator | None = None
    """None without authentication."""
    pages: Pages = field(default_factory=lambda: Pages.from_settings(StateSettings()))
    idempotency: Idempotency = field(default_factory=lambda: Idempotency.from_settings(StateSettings()))
    recent: RecentHits = field(default_factory=lambda: RecentHits.from_settings(McpSettings()))
    secret: DeploymentSecret = field(default_factory=lambda: DeploymentSecret(None, None))
    """The key from which the names of tenants' memories are derived."""
    selector: EngineSelector = field(default_factory=EngineSelector)
    """Chooses the engines of a request, if `select` is on."""
    shadows: Shadows | None = None
    """Asks and compares shadow engines."""
    answers: AnswerCache = field(default_factory=lambda: AnswerCache(CacheSettings()))
    """Cached answers, and equal requests that share one fan-out."""
    partial_answers: deque[PartialAnswer] = field(default_factory=lambda: deque(maxlen=PARTIAL_ANSWERS))
    """The latest answers that lacked an engine, the newest last."""
    switches: SharedSwitches = field(init=False)
    """Engines that operators have switched off."""
    backend: StateBackend = IN_MEMORY
    """Where sessions, cursors and limits are stored: in this process or in Redis."""

    def __post_init__(self) -> None:
        self.switches = SharedSwitches(self.engines, self.backend, shared=self.settings.state.shared)

    def offers(self, caller: Caller) -> Sequence[EngineOffer]:
        """The current offers of the engines that the caller addresses."""
        if caller.engine is None:
            return self.membership.current(caller.tenant).offers
        # Empty before the first handshake of the engine.
        return [
            EngineOffer(engine.id, engine.entry.priority, engine.advertisement, engine.entry.writer)
            for engine in self.engines.engines
            if engine.id == caller.engine and engine.advertisement is not None
        ]

    def renew(self, settings: GatewaySettings, fingerprint: str) -> None:
        """Apply changed settings and the current engines to the next requests. Running requests are not affected.

        `fingerprint` identifies the registry file.
        """
        self.settings = settings
        # The objects stay and their limits change, because requests in flight hold places of them.
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
    """The id of a gateway in `_meta.federation.path` (RCP §16): `server.id`, else its name and the registry's hash."""
    return settings.server.id or f"{settings.server.name}-{fingerprint}"
