"""What the connections of one server share: the bounds that hold now, and which of them wait for nothing.

It decides how many connections there may be, and that one which has been idle for long goes before a new one is
refused. It refuses to know what is sent over any of them.
"""

import sys
from collections.abc import Callable
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from app.settings.schema import ServerSettings

KEPT_DESCRIPTORS = 40
"""Left to engines, files and the process itself, however few there are; else a quarter of them."""

SPARE_CONNECTIONS = 64
"""Connections above the bound that are still read, so that probes get through when callers have taken all places; fewer
where descriptors are few."""

IDLE_SECONDS = 1.0
"""A connection that has been idle for less is not closed for another's sake: its caller may be about to ask."""

TRIES = 8
"""Idle connections that are looked at for one that can go."""

Probe = Callable[[bytes], tuple[int, bytes] | None]
"""(target of a GET) -> the status and JSON of what is answered at once, if anything is."""

Cut = Callable[[str], None]
"""Told why a connection was cut: `message_timeout`, `unread` or `too_many`."""


class Idle(Protocol):
    """A connection that may have to go."""

    def shed(self) -> bool:
        """Close it if there is really nothing under way; whether it was."""
        ...


class Doorway(ServerState):
    """`most` connections are served; of the next `spare` only the probes, and no more are kept.

    Before that those that have been idle longest are closed: callers who open and never ask cost others nothing.
    """

    def __init__(
        self, wishes: Callable[[], ServerSettings], cut: Cut, overfull: Callable[[Any], Any], probe: Probe
    ) -> None:
        """`overfull` makes of the application the one that connections beyond the bound are given."""
        super().__init__()
        self.probe = probe
        self.wishes = wishes
        self.cut = cut
        self.overfull = overfull
        self.closing = False
        """Every answer is the last of its connection."""
        self.idle: dict[Idle, float] = {}
        """Since when (event-loop seconds) which connection is, the longest first."""
        self.leaving = 0
        """Connections that are being closed for others' sake."""
        self._room, self.spare = room_for_connections()
        self._first_lines: tuple[object, bytes] = (None, b"")

    @property
    def most(self) -> int:
        """Connections that are served at once."""
        return min(self.wishes().max_connections, self._room)

    def first_lines(self) -> bytes:
        """How a 200 begins: its status, and the headers of the server, which are others every second."""
        told, lines = self._first_lines
        if told is not self.default_headers:
            told = self.default_headers
            lines = STATUS_LINE[200] + b"".join([b"%b: %b\r\n" % header for header in self.default_headers])
            self._first_lines = (told, lines)
        return lines

    def above(self, now: float) -> int:
        """How many connections there are too many, after whoever may go for the latest of them has gone."""
        above = len(self.connections) - self.leaving - self.most
        while above > 0 and self._make_room(now):
            self.leaving += 1
            above -= 1
        return above

    def _make_room(self, now: float) -> bool:
        for connection, since in list(islice(self.idle.items(), TRIES)):
            if since > now - IDLE_SECONDS:
                return False
            del self.idle[connection]
            if connection.shed():
                return True
        return False

    def __repr__(self) -> str:
        state = ", closing" if self.closing else ""
        return f"<Doorway {len(self.connections)}/{self.most} connections, {len(self.tasks)} requests{state}>"


def room_for_connections() -> tuple[int, int]:
    """(connections that the system lets this process have, further ones for probes), some descriptors left over."""
    descriptors, _ = getrlimit(RLIMIT_NOFILE)
    if descriptors == RLIM_INFINITY:
        return sys.maxsize, SPARE_CONNECTIONS
    spare = max(4, min(SPARE_CONNECTIONS, descriptors // 16))
    return max(8, descriptors - max(descriptors // 4, KEPT_DESCRIPTORS) - spare), spare
