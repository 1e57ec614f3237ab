"""Ends the process at once on SIGTERM and SIGINT while it starts, when there is nothing to drain.

Separate and without imports of the gateway, because it takes effect before the other modules are imported.
"""

import os
import signal
from typing import NoReturn


def end_on_signals() -> None:
    """SIGTERM and SIGINT end the process at once with exit code 0, until somebody else listens to them.

    Also as PID 1 of a container, where a signal that nobody handles means nothing: one that comes while modules are
    still being imported would be lost, and whoever sent it would wait until it kills. SIGHUP is passed over: the files
    are about to be read.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    signal.signal(signal.SIGHUP, lambda *_: None)


def _leave(_number: int, _frame: object) -> NoReturn:
    os._exit(0)  # an exception might be taken for another's by whatever it meets in the middle of the start
