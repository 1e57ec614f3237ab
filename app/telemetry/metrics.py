"""Every metric of the gateway but those of callers, doors, answers, state and MCP (files beside it): their names,
labels and buckets, and the words that rooms report in.

Label values come from configuration and enums only, so that no caller can add a series. It refuses to know what the
numbers mean to a request.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.telemetry.answer_metrics import AnswerMetrics
from app.telemetry.calibration_metrics import CalibrationMetrics
from app.telemetry.caller_metrics import CallerMetrics
from app.telemetry.mcp_metrics import McpMetrics
from app.telemetry.outcomes import Outcomes, outcomes
from app.telemetry.plain_metrics import Counts, Series, counter, lone_counter, lone_gauge, lone_histogram
from app.telemetry.server_metrics import ServerMetrics
from app.telemetry.state_metrics import StateMetrics
from app.telemetry.worker_metrics import AllWorkers, is_shared

REQUEST_OUTCOMES = ("ok", "degraded", "error", "cancelled")
CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 1.9, 2.1, 2.5, 5.0, 10.0)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.9, 2.1, 2.5, 5.0, 9.9, 10.5)
OVERHEAD_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
DROP_REASONS = ("malformed", "excess")
OTHER = "other"

ATTEMPTS = ("first", "again", "retry", "hedge")
"""Why a request was sent: a call's first; over a fresh connection or after a handshake; a retry; a hedge."""

SKIP_REASONS = ("breaker_open", "overloaded", "rate_limited", "timeout")
"""Why a planned call was never sent: the breaker is open; the queue for the engine is full; the engine asked to be left
alone; no place in the queue's front came up before the deadline."""

FORGONE = ("budget", "time")
BREAKER_STATES = ("closed", "open", "half_open")
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class ReplicaState(NamedTuple):
    """One replica as read at the moment of a scrape."""

    label: str
    up: bool
    in_flight: int


class EngineState(NamedTuple):
    """One engine as read at the moment of a scrape: `up`, calls under way and waiting, and the most under way."""

    id: str
    up: bool
    in_flight: int
    waiting: int = 0
    limit: int = 0
    breaker: str = "closed"
    replicas: Sequence[ReplicaState] = ()
    """Only of engines that have several."""
    handshake: float = 0.0
    """When the last handshake went well (Unix time), 0 before the first."""
    warming: bool = False
    """Whether it has yet to complete its first handshake since a reload changed or added it."""


class _EngineStates(Collector):
    """Reads the engines' state at scrape time, so that keeping it costs a request nothing."""

    def __init__(self, read: Callable[[], Iterable[EngineState]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        states = list(self._read())
        for name, help_, of in _ENGINE_GAUGES:
            gauge = GaugeMetricFamily(f"rcp_gateway_engine_{name}", help_, labels=["engine"])
            for state in states:
                gauge.add_metric([state.id], float(of(state)))
            yield gauge
        breaker = GaugeMetricFamily(
            "rcp_gateway_breaker_state", "1 for the state the engine's breaker is in.", labels=["engine", "state"]
        )
        for state in states:
            for name in BREAKER_STATES:
                breaker.add_metric([state.id, name], float(state.breaker == name))
        yield breaker
        yield from _replica_gauges(states)


_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineState], float]], ...] = (
    ("up", "1 while the engine answers.", lambda state: state.up),
    ("in_flight", "Calls to the engine under way.", lambda state: state.in_flight),
    ("waiting", "Calls that wait for one of them to end.", lambda state: state.waiting),
    ("limit", "Most calls under way at once.", lambda state: state.limit),
    ("warming", "1 while an engine that a reload changed or added has not completed a handshake.", lambda s: s.warming),
    ("last_handshake_timestamp_seconds", "When it last said what it can do.", lambda state: state.handshake),
)


def _replica_gauges(states: Iterable[EngineState]) -> Iterator[GaugeMetricFamily]:
    labels = ["engine", "replica"]
    up = GaugeMetricFamily("rcp_gateway_replica_up", "1 unless the replica is left out for a while.", labels=labels)
    in_flight = GaugeMetricFamily("rcp_gateway_replica_in_flight", "Calls to the replica under way.", labels=labels)
    for state in states:
        for replica in state.replicas:
            up.add_metric([state.id, replica.label], float(replica.up))
            in_flight.add_metric([state.id, replica.label], float(replica.in_flight))
    yield up
    yield in_flight


class _NotedStates:
    """The engines' state where several workers can read it: noted every second, and at a scrape by who is asked.

    An engine or replica is up if it is for all of them, of times the latest counts; everything else adds up.
    """

    def __init__(self, read: Callable[[], Iterable[EngineState]], registry: CollectorRegistry) -> None:
        self._states = _EngineStates(read)
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}

    def note(self) -> None:
        for family in self._states.collect():
            for sample in family.samples:
                gauge = self._gauges.get(family.name) or self._made(family, [*sample.labels])
                gauge.labels(*sample.labels.values()).set(sample.value)

    def _made(self, family: GaugeMetricFamily, labels: Sequence[str]) -> Gauge:
        mode: Literal["livemin", "livemax", "livesum"] = "livesum"
        if family.name.endswith("_up"):
            mode = "livemin"
        elif family.name.endswith("_timestamp_seconds"):
            mode = "livemax"
        made = Gauge(family.name, family.documentation, labels, registry=self._registry, multiprocess_mode=mode)
        self._gauges[family.name] = made
        return made


class _GuardCounters:
    """What is counted of the guards of engines."""

    __slots__ = ("_replicas", "attempts", "breaker_transitions", "ejections", "gate_wait", "retries_forgone")

    def __init__(self, registry: CollectorRegistry) -> None:
        self._replicas: dict[str, tuple[str, ...]] = {}
        self.attempts = counter(
            "rcp_gateway_attempts", "Requests sent to engines, by why.", ["engine", "kind"], registry
        )
        self.retries_forgone = Counter(
            "rcp_gateway_retries_forgone", "Retries not made, by why.", ["engine", "reason"], registry=registry
        )
        self.breaker_transitions = Counter(
            "rcp_gateway_breaker_transitions",
            "Times the engine's breaker went over to a state.",
            ["engine", "state"],
            registry=registry,
        )
        self.ejections = Counter(
            "rcp_gateway_replica_ejections",
            "Times a replica was left out for a while.",
            ["engine", "replica"],
            registry=registry,
        )
        self.gate_wait = Histogram(
            "rcp_gateway_gate_wait_seconds",
            "Time of the calls that had to wait for a place.",
            ["engine"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )

    def knows(self, engine: str) -> bool:
        """Whether it is declared and has not left since: who has left must not come back as a series."""
        return engine in self._replicas

    def declare(self, engine: str, replicas: Iterable[str] = ()) -> None:
        labels = self._replicas[engine] = tuple(replicas) or self._replicas.get(engine, ())
        for label in labels:
            self.ejections.labels(engine, label)
        for kind in ATTEMPTS:
            self.attempts.labels(engine, kind)
        for reason in FORGONE:
            self.retries_forgone.labels(engine, reason)
        for state in BREAKER_STATES:
            self.breaker_transitions.labels(engine, state)
        self.gate_wait.labels(engine)

    def forget(self, engine: str) -> None:
        self._replicas.pop(engine, None)

    @property
    def metrics(self) -> tuple[Counts | Counter | Histogram, ...]:
        return self.attempts, self.retries_forgone, self.breaker_transitions, self.ejections, self.gate_wait


def _tell_build(registry: CollectorRegistry, version: str, *, compiled: bool) -> None:
    build = Gauge(
        "rcp_gateway_build_info",
        "Always 1; the labels say the version, and whether the hot rooms run compiled.",
        ["version", "compiled"],
        registry=registry,
        multiprocess_mode="max",
    )
    build.labels(version, str(compiled).lower()).set(1)


def _memory_metrics(registry: CollectorRegistry) -> tuple[Series | Gauge, Series | Counter]:
    return (
        lone_gauge("rcp_gateway_answer_bytes_held", "Bytes of engine answers held for requests under way.", registry),
        lone_counter(
            "rcp_gateway_answers_paused",
            "Engine answers that had to wait while engines.max_held_bytes were held.",
            registry,
        ),
    )


class Metrics:
    """What the gateway counts. Every series of every engine exists with 0 from the start."""

    def __init__(self, version: str, *, compiled: bool = False) -> None:
        # Else each series has a second one of when it began, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self._requests = outcomes(
            ("rcp_gateway_requests", "Requests answered."),
            ("rcp_gateway_request_duration_seconds", "Time from a request's last byte to its answer."),
            ("method", "outcome"),
            REQUEST_BUCKETS,
            registry,
        )
        self._engine_calls = outcomes(
            ("rcp_gateway_legs", "Calls sent to engines on behalf of requests."),
            ("rcp_gateway_leg_duration_seconds", "Time from asking an engine to its answer or failure."),
            ("engine", "outcome"),
            CALL_BUCKETS,
            registry,
        )
        self._skipped = counter(
            "rcp_gateway_engine_calls_skipped",
            "Calls to engines that were planned and never sent, by reason.",
            ["engine", "reason"],
            registry,
        )
        self._policies = _GuardCounters(registry)
        self._errors = Counter("rcp_gateway_errors", "JSON-RPC errors answered.", ["code"], registry=registry)
        self._dropped = Counter(
            "rcp_gateway_hits_dropped",
            "Hits of an engine left out of answers.",
            ["engine", "reason"],
            registry=registry,
        )
        self.overhead = lone_histogram(
            "rcp_gateway_overhead_seconds", "Time of a retrieve minus its longest leg.", OVERHEAD_BUCKETS, registry
        )
        self.requests_in_flight = lone_gauge("rcp_gateway_requests_in_flight", "Requests being answered.", registry)
        self.held_bytes, self.paused_answers = _memory_metrics(registry)
        self.collisions = lone_counter(
            "rcp_gateway_id_collisions",
            "Same hit id from two engines with clearly different text; sampled, at most ten answers per second.",
            registry,
        )
        self.duplicates = lone_counter(
            "rcp_gateway_duplicates_merged", "Copies of one document merged into one hit.", registry
        )
        self.spans_lost = lone_counter(
            "rcp_gateway_trace_spans_lost", "Spans that the trace collector did not take.", registry
        )
        self.callers = CallerMetrics(registry, REQUEST_OUTCOMES)
        self.door = ServerMetrics(registry)
        self.state = StateMetrics(registry)
        self.mcp = McpMetrics(registry)
        self.calibration = CalibrationMetrics(registry)
        self.answers = AnswerMetrics(registry)
        _tell_build(registry, version, compiled=compiled)
        self._methods: frozenset[str] = frozenset()
        self._codes: dict[int, Counter] = {}
        self._other_code = self._errors.labels(OTHER)
        self._engines: set[str] = set()
        self._of_engines = (self._dropped, self._skipped, *self._policies.metrics)
        self._noted: _NotedStates | None = None

    def declare_methods(self, methods: Iterable[str]) -> None:
        """Let every method's series exist with 0; any other method is counted as `other`."""
        self._methods = frozenset(methods)
        for method in (*self._methods, OTHER):
            for outcome in REQUEST_OUTCOMES:
                self._requests.declare(method, outcome)

    def declare_codes(self, codes: Iterable[int]) -> None:
        """Let every error code's series exist with 0; any other code is counted as `other`."""
        self._codes = {code: self._errors.labels(str(code)) for code in codes}

    def declare_engines(self, engines: Iterable[str], kinds: Sequence[str]) -> None:
        """Let every series of these engines exist with 0; `kinds` are the classes a leg can fail with."""
        for engine in engines:
            self._engines.add(engine)
            for outcome in ("ok", "cancelled", *kinds):
                self._engine_calls.declare(engine, outcome)
            for reason in SKIP_REASONS:
                self._skipped.labels(engine, reason)
            for reason in DROP_REASONS:
                self._dropped.labels(engine, reason)
            self._policies.declare(engine)
            self.answers.declare(engine, kinds)
            self.calibration.declare(engine)

    def declare_replicas(self, engine: str, labels: Iterable[str]) -> None:
        """Let every series of an engine's replicas exist with 0."""
        self._policies.declare(engine, labels)

    def first_attempts_of(self, engine: str) -> Callable[[], None]:
        """What counts one first attempt of this engine, and looks nothing up for it."""
        return self._policies.attempts.labels(engine, "first").inc

    def attempted(self, engine: str, kind: str, count: int = 1) -> None:
        """So many requests were sent; `kind` is one of ATTEMPTS."""
        if self._policies.knows(engine):
            self._policies.attempts.labels(engine, kind).inc(count)

    def forgone(self, engine: str, reason: str) -> None:
        """A retry was not made; `reason` is one of FORGONE."""
        if self._policies.knows(engine):
            self._policies.retries_forgone.labels(engine, reason).inc()

    def breaker(self, engine: str, state: str) -> None:
        """The engine's breaker went over to `state`, one of BREAKER_STATES."""
        if self._policies.knows(engine):
            self._policies.breaker_transitions.labels(engine, state).inc()

    def ejected(self, engine: str, replica: str) -> None:
        """A replica was left out for a while."""
        if self._policies.knows(engine):
            self._policies.ejections.labels(engine, replica).inc()

    def waited(self, engine: str, seconds: float) -> None:
        """A call had to wait for its place."""
        if self._policies.knows(engine):
            self._policies.gate_wait.labels(engine).observe(seconds)

    def forget_engines(self, engines: Iterable[str]) -> None:
        """Let the series of these engines vanish; one that comes back begins with 0."""
        for engine in engines:
            self._engines.discard(engine)
            self._engine_calls.forget(engine)
            self._policies.forget(engine)
            self.answers.forget(engine)
            self.calibration.forget(engine)
            if not is_shared():  # else they are left out at the scrape
                for metric in self._of_engines:
                    metric.remove_by_labels({"engine": engine})

    def watch_engines(self, read: Callable[[], Iterable[EngineState]]) -> None:
        """Let `read` be asked for the engines' state at each scrape."""
        if is_shared():
            self._noted = _NotedStates(read, self.registry)
        else:
            self.registry.register(_EngineStates(read))

    def note_engines(self) -> None:
        """Where there are several workers: let the others know the engines' state."""
        if self._noted is not None:
            self._noted.note()

    def scraped(self) -> CollectorRegistry:
        """The registry to expose: of all workers if there are several, else ours."""
        if self._noted is None:
            return self.registry
        self._noted.note()
        whole = CollectorRegistry()
        requests = self._requests
        illustrate = requests.illustrated if isinstance(requests, Outcomes) else lambda metric: None
        whole.register(AllWorkers(lambda: self._engines, illustrate))
        return whole

    def request(self, method: str, outcome: str, seconds: float, trace: str | None = None) -> None:
        """One request answered; `outcome` is one of REQUEST_OUTCOMES, `trace` the id of the trace it belongs to."""
        self._requests.observe(method if method in self._methods else OTHER, outcome, seconds, trace)

    def engine_call(self, engine: str, outcome: str, seconds: float) -> None:
        """One leg ended: `ok`, `cancelled` or the class of its failure."""
        self._engine_calls.observe(engine, outcome, seconds)

    def skipped(self, engine: str, reason: str) -> None:
        """One planned call was never sent; `reason` is the class of its failure."""
        if engine in self._engines:
            self._skipped.labels(engine, reason).inc()

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._methods)} methods>"

    def error(self, code: int) -> None:
        """One JSON-RPC error answered; a code that was not declared (an engine's own) is counted as `other`."""
        self._codes.get(code, self._other_code).inc()

    def dropped(self, engine: str, reason: str, hits: int) -> None:
        """`hits` of an engine were left out: `malformed` or `excess`."""
        if engine in self._engines:
            self._dropped.labels(engine, reason).inc(hits)
