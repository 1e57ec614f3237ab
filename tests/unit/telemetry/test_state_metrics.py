"""The metrics of the shared state."""

from prometheus_client import CollectorRegistry

from app.telemetry.metric_groups import FAILURES, USES, StateMetrics


def test_every_series_is_there_from_the_start() -> None:
    """With 0, and counted as told."""
    registry = CollectorRegistry()
    metrics = StateMetrics(registry)
    for reason in FAILURES:
        assert registry.get_sample_value("rcp_gateway_state_failures_total", {"reason": reason}) == 0
    for use in USES:
        assert registry.get_sample_value("rcp_gateway_state_fallbacks_total", {"use": use}) == 0
        metrics.fell_back(use)
        assert registry.get_sample_value("rcp_gateway_state_fallbacks_total", {"use": use}) == 1
    metrics.failed("timeout")
    assert registry.get_sample_value("rcp_gateway_state_failures_total", {"reason": "timeout"}) == 1
    assert registry.get_sample_value("rcp_gateway_state_degraded") == 0
    assert repr(metrics) == f"<StateMetrics of {len(USES)} uses>"
