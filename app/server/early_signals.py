"""What signals mean before there is anything that could be ended in good order.

Doors room; imports nothing of ours, since it is called before anything else is imported. It decides that SIGTERM and
SIGINT end the process at once. It refuses to know what is about to begin.
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
