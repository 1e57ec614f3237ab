"""What signals mean on the way out: each only hastens, and a second one skips what the first waits for."""

import signal

import pytest

from app.api.stages import TOLD, Stage, hastened, told


@pytest.mark.parametrize(
    ("stage", "number", "then"),
    [
        (Stage.SERVING, signal.SIGTERM, Stage.DRAINING),
        (Stage.SERVING, signal.SIGINT, Stage.FINISHING),
        (Stage.SERVING, signal.SIGQUIT, Stage.CUTTING),
        (Stage.DRAINING, signal.SIGTERM, Stage.FINISHING),
        (Stage.DRAINING, signal.SIGINT, Stage.FINISHING),
        (Stage.FINISHING, signal.SIGTERM, Stage.CUTTING),
        (Stage.FINISHING, signal.SIGINT, Stage.CUTTING),
        (Stage.CUTTING, signal.SIGTERM, Stage.CUTTING),
        (Stage.CUTTING, signal.SIGQUIT, Stage.CUTTING),
    ],
)
def test_signals_hasten(stage: Stage, number: signal.Signals, then: Stage) -> None:
    """A signal leads to its stage, or one further if that is reached."""
    assert hastened(stage, number) is then


def test_every_stage_can_be_told() -> None:
    """Each stage after serving has a signal of its own that workers are told it with."""
    assert {TOLD[told(stage)] for stage in Stage if stage is not Stage.SERVING} == set(Stage) - {Stage.SERVING}
