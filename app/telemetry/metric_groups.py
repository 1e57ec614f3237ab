"""Metrics by the part of the gateway that counts them: callers, connections and reloads, shared state, MCP, answers.

`metrics.py` declares the others. Label values are configured names and the constants below, so that no caller can add a
series.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from app.telemetry.series import MetricRegistry

NOBODY: Final = "-"
"""The tenant label of an unknown caller; no tenant can have this name."""

CALLER_REFUSALS: Final = ("unauthenticated", "forbidden", "requests", "concurrent", "hits")
"""Why a caller is refused: unknown, lacks a role, or over a limit of its tenant."""

SCREENED: Final = ("marked", "dropped", "reported")
"""What the injection screen does with a hit: mark it, drop it, or mark it because its tenant reported it."""

WAIT_BUCKETS: Final[tuple[float, ...]] = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ADMISSION_REFUSALS: Final = ("full", "waited", "memory")
"""Why a request is not admitted: the queue is full, it waited too long, or answers hold too many bytes."""

SOURCE_OUTCOMES: Final = ("ok", "failed", "shrinks")
"""Outcomes of a change of an engine source; `shrinks`: it waits for a second look."""

DAY_SECONDS: Final = 86_400.0

CUTS: Final = ("message_timeout", "unread", "too_many")
"""Why a connection of a caller is closed by force."""

STATE_FAILURES: Final = ("timeout", "connection", "refused")
"""Why Redis did not serve a command: no answer in time, no connection, or an error as its answer."""

STATE_USES: Final = (
    "pages", "sessions", "limits", "idempotency", "handshakes", "session-engines", "secret", "suspicions",
    "cache", "switches",
)  # fmt: skip
"""What the shared state is used for."""

MCP_OUTCOMES: Final = ("ok", "failed", "error", "cancelled")
"""How a tool call ends: with a result, with a failure as its result, with a protocol error, or cancelled."""

OTHER: Final = "other"
"""The label value of every name that callers made up."""

UNREACHED: Final = "unreached"
"""Reason of a degraded answer whose engine was never reached, so that no call to it could fail."""


class CallerMetrics:
    """Requests by tenant, refused callers and screened hits."""

    def __init__(self, registry: MetricRegistry, outcomes: Sequence[str]) -> None:
        """`outcomes`: how a request can end."""
        self._outcomes = outcomes
        self._requests = registry.counter(
            "rcp_gateway_tenant_requests", "Requests answered, by tenant and outcome.", ["tenant", "outcome"]
        )
        self._refusals = registry.counter(
            "rcp_gateway_refusals", "Requests refused before dispatch, by tenant and reason.", ["tenant", "reason"]
        )
        self._screened = registry.counter(
            "rcp_gateway_hits_screened", "Hits that the injection screen marked or dropped.", ["action"]
        )
        self._refusals.labels(NOBODY, "unauthenticated")
        for action in SCREENED:
            self._screened.labels(action)

    def declare(self, tenants: Iterable[str]) -> None:
        """Create every series of these tenants."""
        for tenant in tenants:
            for outcome in self._outcomes:
                self._requests.labels(tenant, outcome)
            for reason in CALLER_REFUSALS[1:]:
                self._refusals.labels(tenant, reason)

    def request(self, tenant: str, outcome: str) -> None:
        """Count a request of this tenant."""
        self._requests.labels(tenant, outcome).inc()

    def refusal(self, tenant: str | None, reason: str) -> None:
        """Count a refused caller; `reason` is one of CALLER_REFUSALS, `tenant` None for an unknown caller."""
        self._refusals.labels(NOBODY if tenant is None else tenant, reason).inc()

    def screened(self, action: str, hits: int) -> None:
        """Count screened hits; `action` is one of SCREENED."""
        self._screened.labels(action).inc(hits)


class ServerMetrics:
    """Admission, connections, shutdown and reloads."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._refused = registry.counter(
            "rcp_gateway_admission_refusals", "Requests not admitted, by reason.", ["reason"]
        )
        self._waits = registry.histogram(
            "rcp_gateway_admission_wait_seconds",
            "Time that queued requests waited until they were admitted or refused.",
            WAIT_BUCKETS,
        ).labels()
        self.connections = registry.gauge("rcp_gateway_connections", "Open connections of callers.").labels()
        self._cut = registry.counter(
            "rcp_gateway_connections_cut", "Connections of callers closed by force, by reason.", ["reason"]
        )
        self.draining = registry.gauge(
            "rcp_gateway_draining", "1 while the gateway shuts down.", workers="max"
        ).labels()
        self._reloads = registry.counter("rcp_gateway_reloads", "Configuration reloads, by outcome.", ["outcome"])
        self._reload_success = registry.gauge(
            "rcp_gateway_reload_success",
            "0 while the files are faulty and the previous configuration is active.",
            workers="min",
        ).labels()
        self._reload_time = registry.gauge(
            "rcp_gateway_reload_timestamp_seconds",
            "Unix time at which the active configuration was loaded (oldest across workers).",
            workers="min",
        ).labels()
        self.restart_needed = registry.gauge(
            "rcp_gateway_restart_needed",
            "Changed settings that take effect only after a restart (most of any worker).",
            workers="max",
        ).labels()
        self._registry = registry
        self._days_left = registry.gauge(
            "rcp_gateway_certificate_days_left",
            "Days until the server's certificate, or one of its chain, expires; +Inf without TLS.",
            workers="min",
        ).labels()
        self._days_left.set(inf)
        for family, values in (
            (self._refused, ADMISSION_REFUSALS), (self._cut, CUTS), (self._reloads, ("ok", "failed"))
        ):  # fmt: skip
            for value in values:
                family.labels(value)

    def refused(self, reason: str) -> None:
        """Count a request that was not admitted; `reason` is one of ADMISSION_REFUSALS."""
        self._refused.labels(reason).inc()

    def waited(self, seconds: float) -> None:
        """Record how long a request waited until it was admitted or refused."""
        self._waits.observe(seconds)

    def connection_cut(self, reason: str) -> None:
        """Count a connection closed by force; `reason` is one of CUTS."""
        self._cut.labels(reason).inc()

    def watch_certificate(self, expires: Callable[[], float]) -> None:
        """Show the days until `expires` (Unix time), computed at each scrape."""
        self._registry.refreshers.append(lambda: self._days_left.set((expires() - time.time()) / DAY_SECONDS))

    def in_force_since(self, when: float) -> None:
        """The active configuration was loaded at `when` (Unix time)."""
        self._reload_success.set(1)
        self._reload_time.set(when)

    def reloaded(self, when: float | None) -> None:
        """A reload succeeded at `when` (Unix time), or failed (None)."""
        self._reloads.labels("failed" if when is None else "ok").inc()
        if when is None:
            self._reload_success.set(0)
        else:
            self.in_force_since(when)

    def __repr__(self) -> str:
        return f"<ServerMetrics, {self.connections.value:g} connections>"


class SourceMetrics:
    """Engine sources. A series exists for each source of the settings, and for no other."""

    __slots__ = ("_engines", "_known", "_reloads", "_success", "_up")

    def __init__(self, registry: MetricRegistry) -> None:
        source = ["source"]
        self._up = registry.gauge(
            "rcp_gateway_source_up",
            "0 while a file of the source is faulty or its URL fails; its last good engines stay in force.",
            source,
            workers="min",
        )
        self._engines = registry.gauge("rcp_gateway_source_engines", "Engines of the source in force.", source, "min")
        self._success = registry.gauge(
            "rcp_gateway_source_last_success_timestamp_seconds",
            "Unix time of the last look at the source without a fault, 0 before the first.",
            source,
            workers="min",
        )
        self._reloads = registry.counter(
            "rcp_gateway_source_reloads", "Changes of engine sources, by outcome.", ["source", "outcome"]
        )
        self._known: frozenset[str] = frozenset()

    def show(self, states: Mapping[str, tuple[bool, int, float]]) -> None:
        """The sources now: name -> whether it is well, its engines, the Unix time of its last success."""
        gone = self._known.difference(states)
        if gone:
            for family in (self._up, self._engines, self._success, self._reloads):
                family.remove("source", gone)
        self._known = frozenset(states)
        for name, (up, engines, success) in states.items():
            self._up.labels(name).set(float(up))
            self._engines.labels(name).set(float(engines))
            self._success.labels(name).set(success)
            for outcome in SOURCE_OUTCOMES:
                self._reloads.labels(name, outcome)

    def changed(self, source: str, outcome: str) -> None:
        """Count a change of a source; `outcome` is one of SOURCE_OUTCOMES."""
        self._reloads.labels(source, outcome).inc()

    def __repr__(self) -> str:
        return f"<SourceMetrics of {len(self._known)} sources>"


class StateMetrics:
    """Failures of the shared state. Every series exists from the start, also where no state is shared."""

    __slots__ = ("_failures", "_fallbacks", "degraded")

    def __init__(self, registry: MetricRegistry | None = None) -> None:
        """Without a registry nobody sees the numbers."""
        registry = MetricRegistry() if registry is None else registry
        self.degraded = registry.gauge(
            "rcp_gateway_state_degraded",
            "1 while the shared state is unavailable (with workers: how many of them cannot use it).",
        ).labels()
        self._failures = registry.counter(
            "rcp_gateway_state_failures", "Redis commands that failed, by reason.", ["reason"]
        )
        self._fallbacks = registry.counter(
            "rcp_gateway_state_fallbacks", "Operations performed without the shared state, by use.", ["use"]
        )
        for reason in STATE_FAILURES:
            self._failures.labels(reason)
        for use in STATE_USES:
            self._fallbacks.labels(use)

    def failed(self, reason: str) -> None:
        """Count a failed command; `reason` is one of STATE_FAILURES."""
        self._failures.labels(reason).inc()

    def fell_back(self, use: str) -> None:
        """Count an operation performed without the shared state; `use` is one of STATE_USES."""
        self._fallbacks.labels(use).inc()

    def __repr__(self) -> str:
        return f"<StateMetrics, {'degraded' if self.degraded.value else 'available'}>"


class McpMetrics:
    """Tool calls of MCP clients."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._calls = registry.counter(
            "rcp_gateway_mcp_calls", "Tool calls of MCP clients, by tool and outcome.", ["tool", "outcome"]
        )

    def declare(self, tools: Iterable[str]) -> None:
        """Create every series of these tools, and of unknown ones."""
        for tool in (*tools, OTHER):
            for outcome in MCP_OUTCOMES:
                self._calls.labels(tool, outcome)

    def call(self, tool: str, outcome: str) -> None:
        """Count a call that has ended; `outcome` is one of MCP_OUTCOMES."""
        self._calls.labels(tool, outcome).inc()


class AnswerMetrics:
    """What answers lack, and how confident engines are of their first hits."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._degraded = registry.counter(
            "rcp_gateway_degraded_answers",
            "Answers without the hits of an engine that was asked, by reason of its failure.",
            ["reason"],
        )
        self._confidence = registry.summary(
            "rcp_gateway_top_confidence", "Confidence of the first hit of an engine's answer, in [0,1].", ["engine"]
        )

    def declare(self, engine: str, kinds: Iterable[str]) -> None:
        """Create every series of an engine; `kinds` are the classes of failure of an engine call."""
        self._confidence.labels(engine)
        for kind in (*kinds, UNREACHED):
            self._degraded.labels(kind)

    def forget(self, engines: Collection[str]) -> None:
        """Remove every series of these engines."""
        self._confidence.remove("engine", engines)

    def degraded(self, reasons: Iterable[str]) -> None:
        """Count a degraded answer, once for each reason, however many engines failed for it."""
        for reason in reasons:
            self._degraded.labels(reason).inc()

    def confidence(self, engine: str, value: float) -> None:
        """Record the confidence of the first hit of an engine's answer."""
        found = self._confidence.find(engine)
        if found is not None:  # else the engine has been removed in the meantime
            found.observe(value)
