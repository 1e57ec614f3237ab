"""How far a gateway is on its way out, and what each signal means for that.

Pure. Every signal only ever hastens: a second one skips what the first would have waited for. It refuses to know what
is done at each stage.
"""

import signal
from enum import IntEnum


class ShutdownStage(IntEnum):
    """The stages of a gateway's life, in order."""

    SERVING = 0
    DRAINING = 1
    """Requests are served as ever, but `/readyz` says 503."""
    FINISHING = 2
    """Nothing new is accepted; what is under way ends."""
    CUTTING = 3
    """What is under way is cut off."""


AT_ONCE = {
    signal.SIGTERM: ShutdownStage.DRAINING,
    signal.SIGINT: ShutdownStage.FINISHING,
    signal.SIGQUIT: ShutdownStage.CUTTING,
}
"""A signal and the stage that it leads to, or one further than now if that is reached: a person at a terminal does not
wait for a balancer to look (SIGINT), and somebody must be able to mean it (SIGQUIT)."""

TOLD = {
    signal.SIGTERM: ShutdownStage.DRAINING,
    signal.SIGUSR1: ShutdownStage.FINISHING,
    signal.SIGQUIT: ShutdownStage.CUTTING,
}
"""How a worker is told its stage. It does not hear SIGINT, which a terminal sends to all processes at once."""


def advanced(stage: ShutdownStage, number: int) -> ShutdownStage:
    """The stage after signal `number` has come in `stage`."""
    wanted = AT_ONCE[signal.Signals(number)]
    return wanted if wanted > stage else ShutdownStage(min(stage + 1, ShutdownStage.CUTTING))


def told(stage: ShutdownStage) -> signal.Signals:
    """The signal that tells a worker to be at least at `stage`."""
    return next(number for number, meant in TOLD.items() if meant is stage)
