"""How many connections one server process keeps, and which of them are closed to make place for others.

This is the `server_state` that uvicorn passes to each connection. Every connection has a regular place, or a spare one
on which only probes are served.
"""

import asyncio
import sys
from collections.abc import Callable
from enum import Enum
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any, Protocol

from app.settings.schema import ServerSettings

KEPT_DESCRIPTORS = 40
"""File descriptors left to engines and files: at least these, and at least a quarter of all."""

SPARE_CONNECTIONS = 64
"""Connections above the bound that are still read, so that probes are answered; fewer if descriptors are few."""

IDLE_SECONDS = 1.0
"""A connection is not closed for another one before it has been without a complete request head for this long."""

UPLOAD_SECONDS = 5.0
"""The same for a connection whose request body is not complete."""

SPARE_SECONDS = 1.0
"""A connection on a spare place has this long to send the head of its request."""

FEW_CONNECTIONS = 64
"""With fewer regular places than this a client address is not held to a share of them, unless the settings say so."""

CANDIDATES = 8
"""Connections that are looked at to find one that can be closed."""

CANDIDATES_OF_ADDRESS = 256
"""The same if it has to be one of a certain client address."""

Probe = Callable[[bytes], tuple[int, bytes] | None]
"""Target of a GET -> status and JSON body of a probe's answer, None if the target is no probe."""

CountCut = Callable[[str], None]
"""Called with the reason for which a connection is cut: `message_timeout`, `unread` or `too_many`."""


class ConnectionPlace(Enum):
    """Where a connection is counted."""

    REGULAR = "regular"
    SPARE = "spare"
    NONE = "none"
    """It is being closed."""


class TrackedConnection(Protocol):
    """What is needed of a connection here."""

    address: str | None
    """The client address it counts for, None if it counts for none."""
    place: ConnectionPlace

    def shed(self) -> bool:
        """Close it if no complete request is under way; whether it was closed."""
        ...

    def end_back_off(self) -> None:
        """Read on, after a time without reading."""
        ...


class Overload(Protocol):
    """What the application refuses while it is full; the connection sends such a refusal itself."""

    retry_after: float
    """Seconds after which a refused caller may ask again."""

    def refuses(self, scope: Any) -> bool:
        """Whether the request of this ASGI scope can only be refused now."""
        ...

    def refusal(self, scope: Any) -> tuple[bytes, bytes]:
        """(header lines, body) of the 503, which is counted."""
        ...


BACK_OFF_TICK = 0.05
"""Seconds between two looks at the connections that are not read."""

QUIET_LOOKS = 4
"""Looks without a refusal after which there seems to be room."""

MAX_RESUMED = 20
"""Connections that are read again at one look; more at once would make one long turn of the event loop."""


class BackOff:
    """Connections whose last request was refused because the gateway was busy: not read until the refusal allows to ask
    again. A caller that asks earlier waits in the kernel, where it costs nothing.

    If nobody is refused for a while, there is room, and connections are read again earlier: one at first, and twice as
    many at each further look.
    """

    def __init__(self) -> None:
        self._until: dict[TrackedConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = 0
        """Looks since the last refusal."""

    def add(self, connection: TrackedConnection, seconds: float) -> None:
        """A request of this connection was refused: read on in so many seconds."""
        loop = asyncio.get_running_loop()
        self._quiet = 0
        self._until[connection] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(BACK_OFF_TICK, self._look)

    def discard(self, connection: TrackedConnection) -> None:
        """The connection is gone."""
        self._until.pop(connection, None)

    def end(self) -> None:
        """Read all connections again, because the server ends."""
        self._resume(len(self._until))

    def _look(self) -> None:
        self._quiet += 1
        early = 1 << min(self._quiet - QUIET_LOOKS, 10) if self._quiet >= QUIET_LOOKS else 0
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = sum(1 for until in islice(self._until.values(), MAX_RESUMED) if until <= now)
        self._resume(min(MAX_RESUMED, max(due, early)))
        self._timer = loop.call_later(BACK_OFF_TICK, self._look) if self._until else None

    def _resume(self, count: int) -> None:
        """Read the oldest of them again."""
        for connection in list(islice(self._until, count)):
            del self._until[connection]
            connection.end_back_off()

    def __repr__(self) -> str:
        return f"<BackOff of {len(self._until)} connections>"


class ConnectionLimits:
    """The connections and requests of one server process."""

    def __init__(
        self,
        settings: Callable[[], ServerSettings],
        count_cut: CountCut,
        only_probes: Callable[[Any], Any],
        probe: Probe,
        overload: Overload,
        counted_address: Callable[[str], str | None] = lambda host: host,
    ) -> None:
        """`only_probes` makes of the application the one that spare connections are served by.

        `counted_address` maps the host of a peer to the client address its connections count for; None: they are not
        counted by address.
        """
        # These four are what uvicorn's server reads and writes of its state.
        self.total_requests = 0
        self.connections: set[Any] = set()
        self.tasks: set[Any] = set()
        self.default_headers: list[tuple[bytes, bytes]] = []

        self.settings = settings
        self.count_cut = count_cut
        self.only_probes = only_probes
        self.probe = probe
        self.overload = overload
        self.counted_address = counted_address
        self.closing = False
        """Every answer is the last one of its connection."""
        self.idle: dict[TrackedConnection, float] = {}
        """Connections without a complete request head, and since when (event-loop seconds), oldest first."""
        self.uploading: dict[TrackedConnection, float] = {}
        """Connections whose request body is not complete, and since when, oldest first."""
        self.spare: dict[TrackedConnection, float] = {}
        """Connections on spare places, and since when, oldest first."""
        self.backing_off = BackOff()
        self._regular = 0
        self._of_address: dict[str, int] = {}
        self._available, self._spare_places = available_connections()
        self._default_lines: tuple[object, bytes] = (None, b"")

    @property
    def most(self) -> int:
        """Regular places."""
        return min(self.settings().max_connections, self._available)

    @property
    def most_of_address(self) -> int:
        """Regular places that one client address may take."""
        wanted = self.settings().max_connections_per_address
        if wanted is None:
            return self.most * 3 // 4 if self.most >= FEW_CONNECTIONS else sys.maxsize
        return wanted or sys.maxsize

    def default_lines(self) -> bytes:
        """The header lines that every answer carries; uvicorn changes `default_headers` once a second."""
        source, lines = self._default_lines
        if source is not self.default_headers:
            source = self.default_headers
            lines = b"".join([b"%b: %b\r\n" % header for header in self.default_headers])
            self._default_lines = (source, lines)
        return lines

    def admit(self, connection: TrackedConnection, now: float) -> ConnectionPlace:
        """The place of a new connection, after others were closed for it where that was needed and allowed."""
        address = connection.address
        if self._may_enter(address, now):
            self._regular += 1
            if address is not None:
                self._of_address[address] = self._of_address.get(address, 0) + 1
            self.idle[connection] = now
            return ConnectionPlace.REGULAR
        self.count_cut("too_many")
        # Probes must get through however many strangers wait here, so the oldest of them goes for the newest.
        if len(self.spare) >= self._spare_places and not self._shed_one(list(self.spare)):
            return ConnectionPlace.NONE
        self.spare[connection] = now
        return ConnectionPlace.SPARE

    def release(self, connection: TrackedConnection) -> None:
        """Give the place of a closed connection back."""
        place, connection.place = connection.place, ConnectionPlace.NONE
        self.idle.pop(connection, None)
        self.uploading.pop(connection, None)
        self.backing_off.discard(connection)
        if place is ConnectionPlace.SPARE:
            self.spare.pop(connection, None)
        elif place is ConnectionPlace.REGULAR:
            self._regular -= 1
            address = connection.address
            if address is not None:
                left = self._of_address.pop(address) - 1
                if left:
                    self._of_address[address] = left

    def close_late_spares(self, now: float) -> None:
        """Close connections on spare places that have not sent a request in time."""
        late = [connection for connection, since in self.spare.items() if since <= now - SPARE_SECONDS]
        for connection in late:
            if connection.shed():
                self.release(connection)

    def _may_enter(self, address: str | None, now: float) -> bool:
        if (
            address is not None
            and self._of_address.get(address, 0) >= self.most_of_address
            and not self._make_place(now, address)
        ):
            return False
        return self._regular < self.most or self._make_place(now)

    def _make_place(self, now: float, address: str | None = None) -> bool:
        """Close the connection, of this address if given, that has been waiting longest to send its request."""
        for waiting, seconds in ((self.idle, IDLE_SECONDS), (self.uploading, UPLOAD_SECONDS)):
            many = CANDIDATES if address is None else CANDIDATES_OF_ADDRESS
            candidates = [
                connection
                for connection, since in islice(waiting.items(), many)
                if since <= now - seconds
                and connection.place is ConnectionPlace.REGULAR
                and address in (None, connection.address)
            ]
            if self._shed_one(candidates):
                self.count_cut("too_many")
                return True
        return False

    def _shed_one(self, candidates: list[TrackedConnection]) -> bool:
        for connection in candidates:
            if connection.shed():
                self.release(connection)
                return True
        return False

    def __repr__(self) -> str:
        state = ", closing" if self.closing else ""
        return (
            f"<ConnectionLimits {self._regular}/{self.most} connections, {len(self.spare)} spare, "
            f"{len(self.tasks)} requests{state}>"
        )


def available_connections() -> tuple[int, int]:
    """(regular places, spare places) that the process's file descriptors allow."""
    descriptors, _ = getrlimit(RLIMIT_NOFILE)
    if descriptors == RLIM_INFINITY:
        return sys.maxsize, SPARE_CONNECTIONS
    spare = max(4, min(SPARE_CONNECTIONS, descriptors // 16))
    return max(8, descriptors - max(descriptors // 4, KEPT_DESCRIPTORS) - spare), spare
