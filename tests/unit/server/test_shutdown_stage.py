"""What signals mean on the way out: each only hastens, and a second one skips what the first waits for."""

import signal

import pytest

from app.server.shutdown_stage import WORKER_SIGNALS, ShutdownStage, advanced, worker_signal


@pytest.mark.parametrize(
    ("stage", "number", "then"),
    [
        (ShutdownStage.SERVING, signal.SIGTERM, ShutdownStage.DRAINING),
        (ShutdownStage.SERVING, signal.SIGINT, ShutdownStage.FINISHING),
        (ShutdownStage.SERVING, signal.SIGQUIT, ShutdownStage.CUTTING),
        (ShutdownStage.DRAINING, signal.SIGTERM, ShutdownStage.FINISHING),
        (ShutdownStage.DRAINING, signal.SIGINT, ShutdownStage.FINISHING),
        (ShutdownStage.FINISHING, signal.SIGTERM, ShutdownStage.CUTTING),
        (ShutdownStage.FINISHING, signal.SIGINT, ShutdownStage.CUTTING),
        (ShutdownStage.CUTTING, signal.SIGTERM, ShutdownStage.CUTTING),
        (ShutdownStage.CUTTING, signal.SIGQUIT, ShutdownStage.CUTTING),
    ],
)
def test_signals_hasten(stage: ShutdownStage, number: signal.Signals, then: ShutdownStage) -> None:
    """A signal leads to its stage, or one further if that is reached."""
    assert advanced(stage, number) is then


def test_every_stage_has_a_signal() -> None:
    """Each stage after serving has a signal of its own for workers."""
    stages = set(ShutdownStage) - {ShutdownStage.SERVING}
    assert {WORKER_SIGNALS[worker_signal(stage)] for stage in stages} == stages
