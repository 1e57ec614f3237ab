"""What is counted of callers before they are heard, and of the gateway's own comings and goings.

Telemetry room, beside metrics.py, which has every other metric. It refuses to know what the numbers mean to a request.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
REFUSALS = ("full", "waited", "memory")
"""Why the gateway refuses a request: too many wait, it waited too long, or too many bytes of answers are held."""
CUTS = ("message_timeout", "unread", "too_many")
"""Why a connection of a caller is cut."""


class ServerMetrics:
    """What is counted of callers before they are heard, and of the gateway's own comings and goings."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refused = Counter(
            "rcp_gateway_admission_refusals", "Requests that were not taken on.", ["reason"], registry=registry
        )
        # Resolved once: refusals must stay cheap under overload.
        self._refusals = {reason: self._refused.labels(reason) for reason in REFUSALS}
        self._waits = Histogram(
            "rcp_gateway_admission_wait_seconds",
            "Time of requests that had to wait until they were taken on or refused.",
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self.connections = Gauge(
            "rcp_gateway_connections", "Connections of callers.", registry=registry, multiprocess_mode="livesum"
        )
        self._cut = Counter(
            "rcp_gateway_connections_cut", "Connections of callers that were cut.", ["reason"], registry=registry
        )
        for reason in CUTS:
            self._cut.labels(reason)
        self.draining = Gauge(
            "rcp_gateway_draining", "1 once told to stop.", registry=registry, multiprocess_mode="livemax"
        )
        self._reloads = Counter(
            "rcp_gateway_reloads", "Times the files were read anew.", ["outcome"], registry=registry
        )
        for outcome in ("ok", "failed"):
            self._reloads.labels(outcome)
        self._reload_success = Gauge(
            "rcp_gateway_reload_success",
            "0 while the files are faulty and what was before is in force.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._reload_time = Gauge(
            "rcp_gateway_reload_timestamp_seconds",
            "When what is in force was read; of several workers the one that is behind.",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def refused(self, reason: str) -> None:
        """A request was not taken on; `reason` is one of REFUSALS."""
        self._refusals[reason].inc()

    def waited(self, seconds: float) -> None:
        """A request waited for so long until it was taken on, or refused."""
        self._waits.observe(seconds)

    def connection_cut(self, reason: str) -> None:
        """A connection of a caller was cut; `reason` is one of CUTS."""
        self._cut.labels(reason).inc()

    def in_force_since(self, when: float) -> None:
        """What the files say is in force since `when` (Unix time)."""
        self._reload_success.set(1)
        self._reload_time.set(when)

    def reloaded(self, when: float | None) -> None:
        """The files were read anew, and are in force since `when`; None: they are faulty."""
        self._reloads.labels("failed" if when is None else "ok").inc()
        if when is None:
            self._reload_success.set(0)
        else:
            self.in_force_since(when)

    def __repr__(self) -> str:
        return f"<DoorMetrics of {len(REFUSALS)} reasons to refuse and {len(CUTS)} to cut>"
