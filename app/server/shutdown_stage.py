"""The stages of a shutdown, and the signals that lead to them. Pure.

A signal only ever moves the process forward: a second one skips what the first would have waited for.
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

WORKER_SIGNALS = {
    signal.SIGTERM: ShutdownStage.DRAINING,
    signal.SIGUSR1: ShutdownStage.FINISHING,
    signal.SIGQUIT: ShutdownStage.CUTTING,
}
"""The signals with which the parent process sets the stage of a worker. Workers ignore SIGINT, because a terminal sends
it to all processes at once."""


def advanced(stage: ShutdownStage, number: int) -> ShutdownStage:
    """The stage after signal `number` has come in `stage`."""
    wanted = AT_ONCE[signal.Signals(number)]
    return wanted if wanted > stage else ShutdownStage(min(stage + 1, ShutdownStage.CUTTING))


def worker_signal(stage: ShutdownStage) -> signal.Signals:
    """The signal that moves a worker to `stage` at least."""
    return next(number for number, meant in WORKER_SIGNALS.items() if meant is stage)
