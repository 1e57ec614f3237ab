"""Every metric: there from the start with 0, bounded in its series, and gone with the engine it is about."""

from collections.abc import Iterator

import pytest

from app.protocol.errors import CALL_KINDS
from app.telemetry.metrics import (
    ATTEMPTS,
    BREAKER_STATES,
    FORGONE,
    OTHER,
    REQUEST_OUTCOMES,
    EngineState,
    Metrics,
    ReplicaState,
)

METHODS = ("retrieve", "ping")
ENGINES = ("docs", "code")


@pytest.fixture
def metrics() -> Metrics:
    """Metrics of a gateway with two methods and two engines, before any request."""
    made = Metrics("1.2.3")
    made.declare_methods(METHODS)
    made.declare_engines(ENGINES, CALL_KINDS)
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of one series now, None if it does not exist."""
    return metrics.registry.get_sample_value(name, labels)


def series(metrics: Metrics) -> Iterator[tuple[str, dict[str, str]]]:
    """Every series there is, but for the time stamps of their creation."""
    for family in metrics.registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                yield sample.name, sample.labels


def test_every_series_is_there_with_nothing(metrics: Metrics) -> None:
    """Before any request every series that can be foreseen exists, and is 0 (B111)."""
    for method in (*METHODS, OTHER):
        for outcome in REQUEST_OUTCOMES:
            labels = {"method": method, "outcome": outcome}
            assert value(metrics, "rcp_gateway_requests_total", **labels) == 0
            assert value(metrics, "rcp_gateway_request_duration_seconds_count", **labels) == 0
    for engine in ENGINES:
        for outcome in ("ok", "cancelled", *CALL_KINDS):
            labels = {"engine": engine, "outcome": outcome}
            assert value(metrics, "rcp_gateway_legs_total", **labels) == 0
        for outcome in ("ok", "failed"):
            assert value(metrics, "rcp_gateway_leg_duration_seconds_count", engine=engine, outcome=outcome) == 0
        for reason in ("malformed", "excess"):
            assert value(metrics, "rcp_gateway_hits_dropped_total", engine=engine, reason=reason) == 0
        for kind in ATTEMPTS:
            assert value(metrics, "rcp_gateway_attempts_total", engine=engine, kind=kind) == 0
        for reason in FORGONE:
            assert value(metrics, "rcp_gateway_retries_forgone_total", engine=engine, reason=reason) == 0
        for state in BREAKER_STATES:
            assert value(metrics, "rcp_gateway_breaker_transitions_total", engine=engine, state=state) == 0
        assert value(metrics, "rcp_gateway_gate_wait_seconds_count", engine=engine) == 0
    for name in (
        "rcp_gateway_overhead_seconds_count",
        "rcp_gateway_requests_in_flight",
        "rcp_gateway_id_collisions_total",
        "rcp_gateway_duplicates_merged_total",
    ):
        assert value(metrics, name) == 0
    assert value(metrics, "rcp_gateway_build_info", version="1.2.3", compiled="false") == 1


def test_declared_codes_are_there_with_nothing(metrics: Metrics) -> None:
    """The codes of RCP exist with 0, too, and any other code is counted as other (B113)."""
    metrics.declare_codes([-32602, -32010])
    assert value(metrics, "rcp_gateway_errors_total", code="-32602") == 0
    assert value(metrics, "rcp_gateway_errors_total", code=OTHER) == 0
    for code in (-32602, -32602, -32010, -32050, 7, 10**12):
        metrics.error(code)
    assert value(metrics, "rcp_gateway_errors_total", code="-32602") == 2
    assert value(metrics, "rcp_gateway_errors_total", code="-32010") == 1
    assert value(metrics, "rcp_gateway_errors_total", code=OTHER) == 3
    assert value(metrics, "rcp_gateway_errors_total", code="-32050") is None


def test_request_is_counted_and_timed(metrics: Metrics) -> None:
    """One request raises one count and one duration."""
    metrics.request("retrieve", "degraded", 0.25)
    labels = {"method": "retrieve", "outcome": "degraded"}
    assert value(metrics, "rcp_gateway_requests_total", **labels) == 1
    assert value(metrics, "rcp_gateway_request_duration_seconds_sum", **labels) == 0.25
    assert value(metrics, "rcp_gateway_requests_total", method="retrieve", outcome="ok") == 0


def test_unknown_methods_are_one_series(metrics: Metrics) -> None:
    """However many method names callers invent, they are counted as other and add no series (B109)."""
    before = list(series(metrics))
    for number in range(1000):
        metrics.request(f"invented/{number}", "error", 0.001)
    assert list(series(metrics)) == before
    assert value(metrics, "rcp_gateway_requests_total", method=OTHER, outcome="error") == 1000


def test_engine_call_is_counted_and_timed(metrics: Metrics) -> None:
    """One leg raises one count and one duration of its engine."""
    metrics.engine_call("docs", "timeout", 2.0)
    metrics.engine_call("docs", "ok", 0.5)
    assert value(metrics, "rcp_gateway_legs_total", engine="docs", outcome="timeout") == 1
    assert value(metrics, "rcp_gateway_leg_duration_seconds_sum", engine="docs", outcome="failed") == 2.0
    assert value(metrics, "rcp_gateway_legs_total", engine="code", outcome="ok") == 0


def test_dropped_hits_are_counted(metrics: Metrics) -> None:
    """Hits left out are counted by engine and reason."""
    metrics.dropped("docs", "malformed", 3)
    metrics.dropped("docs", "malformed", 2)
    assert value(metrics, "rcp_gateway_hits_dropped_total", engine="docs", reason="malformed") == 5


def test_declaring_again_keeps_the_counts(metrics: Metrics) -> None:
    """Declaring what is declared already changes nothing."""
    metrics.engine_call("docs", "ok", 0.5)
    metrics.declare_engines(ENGINES, CALL_KINDS)
    assert value(metrics, "rcp_gateway_legs_total", engine="docs", outcome="ok") == 1


def test_engine_states_are_read_at_the_scrape(metrics: Metrics) -> None:
    """Up and in-flight gauges show what the engines say in the moment of the scrape."""
    states = [EngineState("docs", True, 3), EngineState("code", False, 0)]
    metrics.watch_engines(lambda: states)
    assert value(metrics, "rcp_gateway_engine_up", engine="docs") == 1
    assert value(metrics, "rcp_gateway_engine_up", engine="code") == 0
    assert value(metrics, "rcp_gateway_engine_in_flight", engine="docs") == 3
    states.pop(0)
    assert value(metrics, "rcp_gateway_engine_up", engine="docs") is None


def test_policies_of_engines_are_counted(metrics: Metrics) -> None:
    """What guards do raises one series of their engine, and replicas that are declared are there with 0."""
    metrics.declare_replicas("docs", ["0", "1"])
    assert value(metrics, "rcp_gateway_replica_ejections_total", engine="docs", replica="1") == 0
    metrics.attempted("docs", "retry")
    metrics.first_attempts_of("docs")()
    metrics.forgone("docs", "budget")
    metrics.breaker("docs", "open")
    metrics.ejected("docs", "1")
    metrics.waited("docs", 0.25)
    assert value(metrics, "rcp_gateway_attempts_total", engine="docs", kind="retry") == 1
    assert value(metrics, "rcp_gateway_retries_forgone_total", engine="docs", reason="budget") == 1
    assert value(metrics, "rcp_gateway_breaker_transitions_total", engine="docs", state="open") == 1
    assert value(metrics, "rcp_gateway_replica_ejections_total", engine="docs", replica="1") == 1
    assert value(metrics, "rcp_gateway_gate_wait_seconds_sum", engine="docs") == 0.25
    assert value(metrics, "rcp_gateway_attempts_total", engine="docs", kind="first") == 1


def test_policies_of_an_engine_that_left_are_forgotten(metrics: Metrics) -> None:
    """Its series are gone, and what still happens to its last calls brings none of them back."""
    metrics.declare_replicas("docs", ["0", "1"])
    metrics.forget_engines(["docs"])
    metrics.attempted("docs", "retry")
    metrics.forgone("docs", "budget")
    metrics.breaker("docs", "open")
    metrics.ejected("docs", "1")
    metrics.waited("docs", 0.25)
    assert not [name for name, labels in series(metrics) if labels.get("engine") == "docs"]
    assert value(metrics, "rcp_gateway_attempts_total", engine="code", kind="first") == 0


def test_states_of_policies_are_read_at_the_scrape(metrics: Metrics) -> None:
    """Breaker, gate and replicas show how they stand in the moment of the scrape; a lone replica is none."""
    replicas = [ReplicaState("0", True, 2), ReplicaState("1", False, 1)]
    states = [EngineState("docs", True, 3, 5, 32, "half_open", replicas), EngineState("code", True, 0)]
    metrics.watch_engines(lambda: states)
    shown = {state: value(metrics, "rcp_gateway_breaker_state", engine="docs", state=state) for state in BREAKER_STATES}
    assert shown == {"closed": 0, "open": 0, "half_open": 1}
    assert value(metrics, "rcp_gateway_breaker_state", engine="code", state="closed") == 1
    assert value(metrics, "rcp_gateway_engine_waiting", engine="docs") == 5
    assert value(metrics, "rcp_gateway_engine_limit", engine="docs") == 32
    assert value(metrics, "rcp_gateway_replica_up", engine="docs", replica="1") == 0
    assert value(metrics, "rcp_gateway_replica_in_flight", engine="docs", replica="0") == 2
    assert value(metrics, "rcp_gateway_replica_up", engine="code", replica="0") is None


def test_an_engine_has_at_most_sixty_series(metrics: Metrics) -> None:
    """Counted after a scrape with every class of failure: what an engine costs Prometheus is bounded."""
    metrics.watch_engines(lambda: [EngineState(engine, True, 0) for engine in ENGINES])
    for kind in ("ok", "cancelled", *CALL_KINDS):
        metrics.engine_call("docs", kind, 0.1)
    assert len([name for name, labels in series(metrics) if labels.get("engine") == "docs"]) <= 60


def test_failed_calls_have_no_buckets(metrics: Metrics) -> None:
    """All failures are one histogram without buckets; calls that the gateway cancelled are in no duration."""
    for outcome in ("timeout", "connect", "cancelled"):
        metrics.engine_call("docs", outcome, 1.0)
    name = "rcp_gateway_leg_duration_seconds_bucket"
    edges = [labels["le"] for found, labels in series(metrics) if found == name and labels["outcome"] == "failed"]
    assert edges == ["+Inf"] * len(ENGINES)
    assert value(metrics, name, engine="docs", outcome="failed", le="+Inf") == 2
    assert value(metrics, "rcp_gateway_leg_duration_seconds_count", engine="docs", outcome="ok") == 0


def test_an_engine_that_left_has_no_series(metrics: Metrics) -> None:
    """The series of an engine end with it; a call of it that ends later is counted nowhere, and the others stay."""
    metrics.engine_call("docs", "ok", 0.1)
    metrics.dropped("docs", "excess", 2)
    metrics.forget_engines(["docs"])
    metrics.engine_call("docs", "ok", 0.1)
    assert all(labels.get("engine") != "docs" for _, labels in series(metrics))
    assert value(metrics, "rcp_gateway_legs_total", engine="code", outcome="ok") == 0
    metrics.declare_engines(["docs"], CALL_KINDS)
    assert value(metrics, "rcp_gateway_legs_total", engine="docs", outcome="ok") == 0
