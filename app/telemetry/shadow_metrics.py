"""Metrics of shadow engines: their calls, how similar their lists are, and what feedback says of them."""

from collections.abc import Collection
from typing import Final

from app.telemetry.series import MetricRegistry

SHADOW_OUTCOMES: Final = ("ok", "failed")
DROP_REASONS: Final = ("busy", "draining", "pressure", "unreached", "unsuited")


class ShadowMetrics:
    """An engine has series only while it is a shadow engine."""

    __slots__ = ("_calls", "_declared", "_dropped", "_durations", "_overlap", "_rbo", "_reciprocal_rank")

    def __init__(self, registry: MetricRegistry) -> None:
        self._calls = registry.counter(
            "rcp_gateway_shadow_calls", "Calls of shadow engines, by outcome.", ["engine", "outcome"]
        )
        self._durations = registry.summary(
            "rcp_gateway_shadow_duration_seconds", "Duration of calls of shadow engines.", ["engine"]
        )
        self._overlap = registry.summary(
            "rcp_gateway_shadow_overlap",
            "Overlap@10 of a shadow engine's list with the fused list, or with the list of the engine it is compared "
            "to (of).",
            ["engine", "side"],
        )
        self._rbo = registry.summary(
            "rcp_gateway_shadow_rbo",
            "Rank-biased overlap (p 0.9) of a shadow engine's list with the fused list, or with the list of the engine "
            "it is compared to (of).",
            ["engine", "side"],
        )
        self._reciprocal_rank = registry.summary(
            "rcp_gateway_shadow_reciprocal_rank",
            "Reciprocal rank of a praised hit in the answer (live) and with the shadow engine in it (would_be); "
            "observed at each feedback.",
            ["engine", "side"],
        )
        self._dropped = registry.counter(
            "rcp_gateway_shadow_dropped", "Calls of shadow engines that were not made, by reason.", ["reason"]
        )
        for reason in DROP_REASONS:
            self._dropped.labels(reason)
        self._declared: set[str] = set()

    def declare(self, engine: str) -> None:
        """Create the series of a shadow engine."""
        if engine in self._declared:
            return
        self._declared.add(engine)
        for outcome in SHADOW_OUTCOMES:
            self._calls.labels(engine, outcome)
        self._durations.labels(engine)
        for side in ("fused", "of"):
            self._overlap.labels(engine, side)
            self._rbo.labels(engine, side)
        for side in ("live", "would_be"):
            self._reciprocal_rank.labels(engine, side)

    def watch(self, engine: str, *, shadow: bool) -> None:
        """Create the series of a shadow engine, or remove those of an engine that is none any more."""
        if shadow:
            self.declare(engine)
        elif engine in self._declared:
            self.forget([engine])

    def called(self, engine: str, outcome: str, seconds: float) -> None:
        """One call of a shadow engine ended."""
        self.declare(engine)
        self._calls.labels(engine, outcome).inc()
        self._durations.labels(engine).observe(seconds)

    def compared(self, engine: str, side: str, overlap: float, rbo: float) -> None:
        """One list was compared with the fused list (`fused`), or with that of one engine (`of`)."""
        self._overlap.labels(engine, side).observe(overlap)
        self._rbo.labels(engine, side).observe(rbo)

    def praised(self, engine: str, live: float, would_be: float) -> None:
        """Feedback praised hits of a compared answer."""
        self._reciprocal_rank.labels(engine, "live").observe(live)
        self._reciprocal_rank.labels(engine, "would_be").observe(would_be)

    def dropped(self, reason: str) -> None:
        """A call was not made."""
        self._dropped.labels(reason).inc()

    def forget(self, engines: Collection[str]) -> None:
        """Remove the series of these engines."""
        self._declared -= {*engines}
        for family in (self._calls, self._durations, self._overlap, self._rbo, self._reciprocal_rank):
            family.remove("engine", engines)

    def __repr__(self) -> str:
        return f"<ShadowMetrics of {len(self._declared)} engines>"
