"""What is counted of the state that gateways share: whether it is at hand, and what was decided without it.

Label values are enums. It refuses to know what the state holds.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

FAILURES = ("timeout", "connection", "refused")
"""Why Redis did not give what it was asked: no answer in time, no connection, an error as the answer."""

USES = ("pages", "sessions", "limits", "idempotency", "handshakes", "session-engines", "secret", "suspicions")
"""What the state is kept for."""


class StateMetrics:
    """Every series exists with 0 from the start, also where nothing is shared."""

    __slots__ = ("_failures", "_fallbacks", "degraded")

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.degraded = Gauge(
            "rcp_gateway_state_degraded",
            "1 while the shared state is not at hand; of several workers, how many of them.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._failures = Counter(
            "rcp_gateway_state_failures", "Questions to Redis that it did not answer.", ["reason"], registry=registry
        )
        self._fallbacks = Counter(
            "rcp_gateway_state_fallbacks", "Decisions made without the shared state.", ["use"], registry=registry
        )
        for reason in FAILURES:
            self._failures.labels(reason)
        for use in USES:
            self._fallbacks.labels(use)

    def failed(self, reason: str) -> None:
        """Redis did not give what it was asked; `reason` is one of FAILURES."""
        self._failures.labels(reason).inc()

    def fell_back(self, use: str) -> None:
        """Something was decided without it; `use` is one of USES."""
        self._fallbacks.labels(use).inc()

    def __repr__(self) -> str:
        return f"<StateMetrics of {len(USES)} uses>"
