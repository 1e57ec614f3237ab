"""The metrics of a gateway: their names, labels and buckets, and the methods that count.

Label values come from the configuration and from constants, so that no caller can add a series. An engine has at most
60 series. `docs/signals.md` describes each metric.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from app.telemetry.cache_metrics import CacheMetrics
from app.telemetry.calibration_metrics import CalibrationMetrics
from app.telemetry.exposition import Exposition, publish
from app.telemetry.metric_groups import (
    OTHER,
    AnswerMetrics,
    CallerMetrics,
    McpMetrics,
    ServerMetrics,
    SourceMetrics,
    StateMetrics,
)
from app.telemetry.selection_metrics import SelectionMetrics
from app.telemetry.series import Labels, MetricRegistry, replace_all
from app.telemetry.shadow_metrics import ShadowMetrics
from app.telemetry.worker_snapshots import WorkerSnapshots

REQUEST_OUTCOMES: Final = ("ok", "degraded", "error", "cancelled")
CALL_BUCKETS: Final[tuple[float, ...]] = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUEST_BUCKETS: Final[tuple[float, ...]] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    1.9,
    2.1,
    2.5,
    5.0,
    9.9,
    10.5,
)
OVERHEAD_BUCKETS: Final[tuple[float, ...]] = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
DROP_REASONS: Final = ("malformed", "excess")

ATTEMPTS: Final = ("first", "again", "retry", "hedge")
"""Why a request was sent to an engine: first attempt; over a fresh connection or after a handshake; retry; hedge."""

SKIP_REASONS: Final = ("breaker_open", "overloaded", "rate_limited", "timeout")
"""Why a planned call was not sent: breaker open; queue full; engine asked to wait; no slot before the deadline."""

FORGONE: Final = ("budget", "time")
"""Why a retry was not made: the retry budget or the deadline does not allow it."""

BREAKER_STATES: Final = ("closed", "open", "half_open")


class ReplicaState(NamedTuple):
    """One replica at the moment of a scrape."""

    label: str
    up: bool
    in_flight: int


class EngineState(NamedTuple):
    """One engine at the moment of a scrape: calls in flight and waiting, and the most that may be in flight."""

    id: str
    up: bool
    in_flight: int
    waiting: int = 0
    limit: int = 0
    breaker: str = "closed"
    replicas: Sequence[ReplicaState] = ()
    """Empty for an engine with a single replica."""
    handshake: float = 0.0
    """Unix time of the last successful handshake, 0 before the first."""
    warming: bool = False
    """Whether it has yet to complete its first handshake since a reload changed or added it."""


class EngineGauges:
    """Gauges of engines and replicas, read at a scrape, so that keeping them costs a request nothing."""

    __slots__ = ("_breaker", "_gauges", "_read", "_replica_in_flight", "_replica_up")

    def __init__(self, registry: MetricRegistry, read: Callable[[], Iterable[EngineState]]) -> None:
        self._read = read
        engine, replica = ["engine"], ["engine", "replica"]
        self._gauges = (
            registry.gauge("rcp_gateway_engine_up", "1 while the engine answers.", engine, workers="min"),
            registry.gauge("rcp_gateway_engine_in_flight", "Calls to the engine in flight.", engine),
            registry.gauge("rcp_gateway_engine_waiting", "Calls queued for a slot.", engine),
            registry.gauge("rcp_gateway_engine_limit", "Most calls in flight at once.", engine),
            registry.gauge(
                "rcp_gateway_engine_warming",
                "1 while an engine that a reload changed or added has not completed a handshake.",
                engine,
            ),
            registry.gauge(
                "rcp_gateway_engine_last_handshake_timestamp_seconds",
                "Unix time of the last successful handshake, 0 before the first.",
                engine,
                workers="max",
            ),
        )
        self._breaker = registry.gauge(
            "rcp_gateway_breaker_state", "1 for the state that the engine's breaker is in.", ["engine", "state"]
        )
        self._replica_up = registry.gauge(
            "rcp_gateway_replica_up", "0 while the replica is ejected.", replica, workers="min"
        )
        self._replica_in_flight = registry.gauge(
            "rcp_gateway_replica_in_flight", "Calls to the replica in flight.", replica
        )
        registry.refreshers.append(self._refresh)

    def _refresh(self) -> None:
        states = list(self._read())
        values: list[dict[Labels, float]] = [{} for _ in self._gauges]
        breaker: dict[Labels, float] = {}
        for state in states:
            numbers = (state.up, state.in_flight, state.waiting, state.limit, state.warming, state.handshake)
            for gauge, number in zip(values, numbers, strict=True):
                gauge[(state.id,)] = float(number)
            for name in BREAKER_STATES:
                breaker[state.id, name] = float(state.breaker == name)
        for family, found in zip(self._gauges, values, strict=True):
            replace_all(family, found)
        replace_all(self._breaker, breaker)
        replicas = [(state.id, replica) for state in states for replica in state.replicas]
        replace_all(self._replica_up, {(engine, one.label): float(one.up) for engine, one in replicas})
        replace_all(self._replica_in_flight, {(engine, one.label): float(one.in_flight) for engine, one in replicas})


class EngineCounters:
    """What is counted of engine calls. The methods ignore engines that are not declared: calls may end after a reload
    removed their engine, and must not bring its series back."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.engines: set[str] = set()
        self._calls = registry.counter(
            "rcp_gateway_legs", "Calls sent to engines, by outcome: ok, cancelled or class of failure.",
            ["engine", "outcome"],
        )  # fmt: skip
        self._durations = registry.histogram(
            "rcp_gateway_leg_duration_seconds",
            "Duration of calls sent to engines: `ok` in buckets; `failed` has count and sum only.",
            CALL_BUCKETS,
            ["engine", "outcome"],
            unbucketed="failed",
        )
        self._skipped = registry.counter(
            "rcp_gateway_engine_calls_skipped", "Calls planned but not sent, by reason.", ["engine", "reason"]
        )
        self._attempts = registry.counter(
            "rcp_gateway_attempts", "Requests sent to engines, by reason of the attempt.", ["engine", "kind"]
        )
        self._retries_forgone = registry.counter(
            "rcp_gateway_retries_forgone", "Retries not made, by reason.", ["engine", "reason"]
        )
        self._breaker_transitions = registry.counter(
            "rcp_gateway_breaker_transitions", "Transitions of the engine's breaker, by new state.", ["engine", "state"]
        )
        self._ejections = registry.counter(
            "rcp_gateway_replica_ejections", "Times a replica was ejected.", ["engine", "replica"]
        )
        self._queue_waits = registry.summary(
            "rcp_gateway_gate_wait_seconds", "Time that queued calls waited for a slot.", ["engine"]
        )
        self._dropped = registry.counter(
            "rcp_gateway_hits_dropped", "Hits of an engine left out of answers, by reason.", ["engine", "reason"]
        )

    def declare(self, engine: str, kinds: Sequence[str]) -> None:
        """Create every series of an engine; `kinds` are the classes of failure of an engine call."""
        self.engines.add(engine)
        for family, values in (
            (self._calls, ("ok", "cancelled", *kinds)),
            (self._skipped, SKIP_REASONS),
            (self._attempts, ATTEMPTS),
            (self._retries_forgone, FORGONE),
            (self._breaker_transitions, BREAKER_STATES),
            (self._dropped, DROP_REASONS),
        ):
            for value in values:
                family.labels(engine, value)
        self._durations.labels(engine, "ok")
        self._durations.labels(engine, "failed")
        self._queue_waits.labels(engine)

    def declare_replicas(self, engine: str, labels: Iterable[str]) -> None:
        """Create every series of an engine's replicas."""
        for label in labels:
            self._ejections.labels(engine, label)

    def forget(self, engines: Collection[str]) -> None:
        """Remove every series of these engines."""
        self.engines.difference_update(engines)
        for family in (
            self._calls,
            self._skipped,
            self._attempts,
            self._retries_forgone,
            self._breaker_transitions,
            self._ejections,
            self._dropped,
        ):
            family.remove("engine", engines)
        self._durations.remove("engine", engines)
        self._queue_waits.remove("engine", engines)

    def first_attempts_of(self, engine: str) -> Callable[[], None]:
        """A function that counts one first attempt of this engine, without a lookup."""
        return self._attempts.labels(engine, "first").inc

    def attempted(self, engine: str, kind: str, count: int = 1) -> None:
        """Count requests sent; `kind` is one of ATTEMPTS."""
        if engine in self.engines:
            self._attempts.labels(engine, kind).inc(count)

    def forgone(self, engine: str, reason: str) -> None:
        """Count a retry that was not made; `reason` is one of FORGONE."""
        if engine in self.engines:
            self._retries_forgone.labels(engine, reason).inc()

    def breaker(self, engine: str, state: str) -> None:
        """Count a transition of the breaker to `state`, one of BREAKER_STATES."""
        if engine in self.engines:
            self._breaker_transitions.labels(engine, state).inc()

    def ejected(self, engine: str, replica: str) -> None:
        """Count an ejection of a replica."""
        if engine in self.engines:
            self._ejections.labels(engine, replica).inc()

    def waited(self, engine: str, seconds: float) -> None:
        """Record how long a call waited for a slot."""
        if engine in self.engines:
            self._queue_waits.labels(engine).observe(seconds)

    def engine_call(self, engine: str, outcome: str, seconds: float) -> None:
        """Count a call that has ended with `ok`, `cancelled` or the class of its failure."""
        calls = self._calls.find(engine, outcome)
        if calls is None:
            return
        calls.inc()
        if outcome != "cancelled":  # how long we let it run says nothing about the engine
            self._durations.labels(engine, "ok" if outcome == "ok" else "failed").observe(seconds)

    def skipped(self, engine: str, reason: str) -> None:
        """Count a planned call that was not sent; `reason` is the class of its failure."""
        if engine in self.engines:
            self._skipped.labels(engine, reason).inc()

    def dropped(self, engine: str, reason: str, hits: int) -> None:
        """Count hits left out of an answer; `reason` is one of DROP_REASONS."""
        if engine in self.engines:
            self._dropped.labels(engine, reason).inc(hits)

    def __repr__(self) -> str:
        return f"<EngineCounters of {len(self.engines)} engines>"


class Metrics(EngineCounters):
    """Everything that a gateway counts. Every series of every engine exists with 0 from the start."""

    def __init__(self, version: str, *, compiled: bool = False, workers: WorkerSnapshots | None = None) -> None:
        """`workers`: the other worker processes, if there are any."""
        # Inherited counts must be known before the first family is declared.
        families = self.families = MetricRegistry({} if workers is None else workers.inherited())
        super().__init__(families)
        self.registry = CollectorRegistry()
        """The same as prometheus_client sees it: of this process alone."""
        self.registry.register(families)
        self._requests = families.counter(
            "rcp_gateway_requests", "Requests answered, by method and outcome.", ["method", "outcome"]
        )
        self._request_durations = families.histogram(
            "rcp_gateway_request_duration_seconds",
            "Time from a request's last byte to its answer.",
            REQUEST_BUCKETS,
            ["method", "outcome"],
        )
        self._errors = families.counter("rcp_gateway_errors", "JSON-RPC error responses, by code.", ["code"])
        self._declare_single_series(families)
        self.callers = CallerMetrics(families, REQUEST_OUTCOMES)
        self.server = ServerMetrics(families)
        self.state = StateMetrics(families)
        self.sources = SourceMetrics(families)
        self.mcp = McpMetrics(families)
        self.answers = AnswerMetrics(families)
        self.calibration = CalibrationMetrics(families)
        self.selection = SelectionMetrics(families)
        self.shadows = ShadowMetrics(families)
        self.cache = CacheMetrics(families)
        families.gauge(
            "rcp_gateway_build_info",
            "Always 1; the labels are the version and whether performance-critical modules are compiled.",
            ["version", "compiled"],
            workers="max",
        ).labels(version, str(compiled).lower()).set(1)
        self._methods: frozenset[str] = frozenset()
        self._codes: dict[int, str] = {}
        self._errors.labels(OTHER)
        self._workers = workers
        self.exposition = Exposition(families, self.engines, workers)

    def _declare_single_series(self, families: MetricRegistry) -> None:
        """Metrics without labels."""
        self.overhead = families.histogram(
            "rcp_gateway_overhead_seconds", "Duration of a retrieve minus its longest engine call.", OVERHEAD_BUCKETS
        ).labels()
        self.requests_in_flight = families.gauge("rcp_gateway_requests_in_flight", "Requests in flight.").labels()
        self.held_bytes = families.gauge(
            "rcp_gateway_answer_bytes_held", "Bytes of engine answers held for requests in flight."
        ).labels()
        self.paused_answers = families.counter(
            "rcp_gateway_answers_paused", "Engine answers that had to wait because of engines.max_held_bytes."
        ).labels()
        self.collisions = families.counter(
            "rcp_gateway_id_collisions",
            "Same hit id from two engines with clearly different text; sampled, at most ten answers per second.",
        ).labels()
        self.duplicates = families.counter(
            "rcp_gateway_duplicates_merged", "Copies of one document merged into one hit."
        ).labels()
        self.spans_lost = families.counter(
            "rcp_gateway_trace_spans_lost", "Spans that the trace collector did not accept."
        ).labels()

    def declare_methods(self, methods: Iterable[str]) -> None:
        """Create every series of these methods; other methods are counted as `other`."""
        self._methods = frozenset(methods)
        for method in (*sorted(self._methods), OTHER):
            for outcome in REQUEST_OUTCOMES:
                self._requests.labels(method, outcome)
                self._request_durations.labels(method, outcome)

    def declare_codes(self, codes: Iterable[int]) -> None:
        """Create the series of these error codes; other codes are counted as `other`."""
        self._codes = {code: str(code) for code in codes}
        for label in self._codes.values():
            self._errors.labels(label)

    def declare_engines(self, engines: Iterable[str], kinds: Sequence[str]) -> None:
        """Create every series of these engines; `kinds` are the classes of failure of an engine call."""
        for engine in engines:
            self.declare(engine, kinds)
            self.answers.declare(engine, kinds)
            self.calibration.declare(engine)
            self.selection.declare(engine)

    def forget_engines(self, engines: Iterable[str]) -> None:
        """Remove the series of these engines; one that comes back starts with 0."""
        gone = frozenset(engines)
        if gone:  # each family is searched once, however many engines are removed
            self.forget(gone)
            self.answers.forget(gone)
            self.calibration.forget(gone)
            self.selection.forget(gone)
            self.shadows.forget(gone)

    def watch_engines(self, read: Callable[[], Iterable[EngineState]]) -> None:
        """Ask `read` for the engines' state at each scrape."""
        EngineGauges(self.families, read)

    def publish(self) -> None:
        """Let the other workers read our numbers, if there are any; called about once a second."""
        if self._workers is not None:
            self.families.refresh()
            publish(self.families, self._workers)

    def request(self, method: str, outcome: str, seconds: float, trace: str | None = None) -> None:
        """Count an answered request; `outcome` is one of REQUEST_OUTCOMES, `trace` the id of its sampled trace."""
        method = method if method in self._methods else OTHER
        self._requests.labels(method, outcome).inc()
        self._request_durations.labels(method, outcome).observe(seconds, trace)

    def error(self, code: int) -> None:
        """Count a JSON-RPC error response; a code that was not declared (an engine's own) is counted as `other`."""
        self._errors.labels(self._codes.get(code, OTHER)).inc()

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._methods)} methods and {len(self.engines)} engines>"
