"""Whether an engine counts as up: by the last thing it did in traffic or when checked, and who is told of it.

Engines room. It decides when a change is told. It refuses to know which faults make an engine count as down.
"""

import asyncio
from collections.abc import Callable

from app.protocol.errors import ConnectFailed, LegError

QUIET_SECONDS = 5.0
"""After traffic told a change, further ones are told by the next check only: an engine may flap with every call."""

Told = Callable[[LegError | None], None]


class Availability:
    """Up or down, and why. `told` hears of each change: None for up, else the fault."""

    __slots__ = ("_told", "_told_at", "_told_up", "answered", "fault")

    def __init__(self, told: Told) -> None:
        self.fault: LegError | None = ConnectFailed("no handshake yet")
        self.answered = False
        """Whether a call was answered since this was last set to False; traffic outranks checks."""
        self._told = told
        self._told_up: bool | None = None
        self._told_at = float("-inf")

    def good(self) -> None:
        """It did something right."""
        if self.fault is not None:
            self.fault = None
            self._tell()

    def bad(self, fault: LegError) -> None:
        """It failed."""
        self.fault = fault
        self._tell()

    def settle(self) -> None:
        """A check is over: what has not been told is told now."""
        up = self.fault is None
        if up is not self._told_up:
            self._told_up = up
            self._told(self.fault)

    def _tell(self) -> None:
        """Before the first check it is not said that an engine is down: it may just not be there yet."""
        now = asyncio.get_running_loop().time()
        if self._told_up is not None and now >= self._told_at + QUIET_SECONDS:
            self._told_at = now
            self.settle()

    def __repr__(self) -> str:
        return "<Standing up>" if self.fault is None else f"<Standing down, {self.fault.kind}: {self.fault.message}>"
