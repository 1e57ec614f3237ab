"""Metrics of the answer cache: requests by how they were answered, entries, bytes, and callers of shared fan-outs."""

from typing import Final

from app.telemetry.series import MetricRegistry

CACHE_STATUSES: Final = ("hit", "miss", "joined", "stale", "bypass")
"""How a request met the cache: `joined` shared the fan-out of an equal request, `bypass` could not use the cache."""

BYPASS_REASONS: Final = (
    "request", "session", "cursor", "stream", "progress", "explain", "seed", "federation", "engine", "deadline",
)  # fmt: skip
"""Why a request could not use the cache."""

STALE_REASONS: Final = ("revalidate", "error")
"""Why an answer was served after its lifetime: while a new one is fetched, or because none could be fetched."""

CALLER_BUCKETS: Final[tuple[float, ...]] = (1.0, 2.0, 5.0, 20.0, 100.0)


class CacheMetrics:
    """All series exist with 0 from the start."""

    __slots__ = ("_bypass", "_bytes", "_entries", "_evictions", "_flights", "_requests", "_stale")

    def __init__(self, registry: MetricRegistry) -> None:
        self._requests = registry.counter(
            "rcp_gateway_cache_requests",
            "Requests for which the answer cache is enabled, by how they were answered.",
            ["status"],
        )
        for status in CACHE_STATUSES:
            self._requests.labels(status)
        self._bypass = registry.counter(
            "rcp_gateway_cache_bypass", "Requests that could not use the answer cache, by reason.", ["reason"]
        )
        for reason in BYPASS_REASONS:
            self._bypass.labels(reason)
        self._stale = registry.counter(
            "rcp_gateway_cache_stale_served",
            "Answers served after their lifetime: while a new one is fetched, or because no engine answered.",
            ["why"],
        )
        for why in STALE_REASONS:
            self._stale.labels(why)
        self._evictions = registry.counter(
            "rcp_gateway_cache_evictions", "Cached answers evicted before the end of their lifetime, for lack of space."
        ).labels()
        self._bytes = registry.gauge(
            "rcp_gateway_cache_bytes", "Bytes of cached answers held in memory, sum of the workers."
        ).labels()
        self._entries = registry.gauge(
            "rcp_gateway_cache_entries", "Cached answers held in memory, sum of the workers."
        ).labels()
        self._flights = registry.histogram(
            "rcp_gateway_flight_callers", "Callers that shared one fan-out, when it ended.", CALLER_BUCKETS
        ).labels()

    def answered(self, status: str, reason: str | None = None) -> None:
        """A request was answered: `status` is one of CACHE_STATUSES, `reason` one of BYPASS_REASONS."""
        self._requests.labels(status).inc()
        if reason is not None:
            self._bypass.labels(reason).inc()

    def stale(self, why: str) -> None:
        """An answer was served after its lifetime; `why` is one of STALE_REASONS."""
        self._stale.labels(why).inc()

    def shared(self, callers: int) -> None:
        """A fan-out ended that so many callers had waited for."""
        self._flights.observe(callers)

    def holds(self, entries: int, size: int, evicted: int) -> None:
        """The cache holds this many entries and bytes; `evicted`: more evictions since the last report."""
        self._entries.set(entries)
        self._bytes.set(size)
        if evicted:
            self._evictions.inc(evicted)

    def __repr__(self) -> str:
        return f"<CacheMetrics {self._requests!r}>"
