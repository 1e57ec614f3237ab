"""How many connections there may be, and who goes for whom."""

import sys
from typing import Any

import pytest

from app.api import doorway as room
from app.api.doorway import Doorway
from app.settings.schema import ServerSettings


class FakeConnection:
    """A connection that is idle, or only seems to be."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.closed = False

    def shed(self) -> bool:
        self.closed = not self.busy
        return self.closed


def doorway_of(*idle_since: tuple[FakeConnection, float], most: int, new: int = 1) -> Doorway:
    """One with these idle connections and so many new ones, which may have `most`."""
    made = Doorway(lambda: ServerSettings(max_connections=most), print, lambda app: app, lambda target: None)
    made.idle.update(dict(idle_since))
    connections: Any = made.connections
    connections.update(made.idle, (object() for _ in range(new)))
    return made


@pytest.mark.parametrize(
    ("descriptors", "most", "spare"),
    [(64, 20, 4), (100, 54, 6), (1024, 704, 64), (16, 8, 4), (1_048_576, 786_368, 64), (None, sys.maxsize, 64)],
)
def test_the_system_gives_room(monkeypatch: pytest.MonkeyPatch, descriptors: int | None, most: int, spare: int) -> None:
    """A quarter of the descriptors is left, at least forty; of the rest a few are for probes."""
    limit = room.RLIM_INFINITY if descriptors is None else descriptors
    monkeypatch.setattr(room, "getrlimit", lambda which: (limit, limit))
    assert room.room_for_connections() == (most, spare)
    doorway = Doorway(ServerSettings, print, lambda app: app, lambda target: None)
    assert doorway.most == min(most, 4096)
    assert repr(doorway) == f"<Doorway 0/{doorway.most} connections, 0 requests>"


def test_the_longest_idle_go_first() -> None:
    """As many as are too many, in the order in which they fell idle; they count no more, though still there."""
    first, second, third = (FakeConnection() for _ in range(3))
    doorway = doorway_of((first, 1.0), (second, 2.0), (third, 3.0), most=2)
    assert doorway.above(10.0) == 0
    assert [each.closed for each in (first, second, third)] == [True, True, False]
    assert (doorway.leaving, list(doorway.idle)) == (2, [third])
    assert doorway.above(10.0) == 0
    assert not third.closed


def test_who_is_about_to_ask_stays() -> None:
    """Neither who fell idle just now nor who has something under way after all is closed; then there is no room."""
    busy, fresh = FakeConnection(busy=True), FakeConnection()
    doorway = doorway_of((busy, 1.0), (fresh, 9.5), most=1)
    assert doorway.above(10.0) == 2
    assert not fresh.closed
    assert doorway.leaving == 0


def test_the_first_lines_follow_the_servers_headers() -> None:
    """The date is another one every second."""
    doorway = Doorway(ServerSettings, print, lambda app: app, lambda target: None)
    doorway.default_headers = [(b"date", b"one")]
    assert doorway.first_lines() == b"HTTP/1.1 200 OK\r\ndate: one\r\n"
    doorway.default_headers = [(b"date", b"two")]
    assert doorway.first_lines() == b"HTTP/1.1 200 OK\r\ndate: two\r\n"
