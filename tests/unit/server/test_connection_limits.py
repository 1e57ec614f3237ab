"""How many connections there may be, and which are closed for others."""

import asyncio
import sys
from typing import Any

import pytest

from app.server import connection_limits
from app.server.connection_limits import ConnectionLimits, ConnectionPlace
from app.settings.schema import ServerSettings
from tests.support.http_connection import NeverOverloaded
from tests.support.virtual_time import virtually


class FakeConnection:
    """A connection that can be closed unless it is busy."""

    def __init__(self, address: str | None = "a", *, busy: bool = False) -> None:
        self.address = address
        self.place = ConnectionPlace.NONE
        self.busy = busy
        self.closed = False
        self.read_again = False

    def shed(self) -> bool:
        self.closed = not self.busy
        return self.closed

    def end_back_off(self) -> None:
        self.read_again = True


def limits_of(**settings: Any) -> ConnectionLimits:
    """Limits with these settings of the server."""
    chosen = ServerSettings(**settings)
    return ConnectionLimits(
        lambda: chosen, lambda reason: None, lambda app: app, lambda target: None, NeverOverloaded()
    )


def admitted(limits: ConnectionLimits, now: float, *connections: FakeConnection) -> list[ConnectionPlace]:
    """The places that these get, one after the other."""
    for connection in connections:
        connection.place = limits.admit(connection, now)
    return [connection.place for connection in connections]


@pytest.mark.parametrize(
    ("descriptors", "most", "spare"),
    [(64, 20, 4), (100, 54, 6), (1024, 704, 64), (16, 8, 4), (1_048_576, 786_368, 64), (None, sys.maxsize, 64)],
)
def test_the_system_gives_room(monkeypatch: pytest.MonkeyPatch, descriptors: int | None, most: int, spare: int) -> None:
    """A quarter of the descriptors is left, at least forty; of the rest a few are for probes."""
    limit = connection_limits.RLIM_INFINITY if descriptors is None else descriptors
    monkeypatch.setattr(connection_limits, "getrlimit", lambda which: (limit, limit))
    assert connection_limits.available_connections() == (most, spare)
    assert limits_of().most == min(most, 4096)


def test_refused_connections_are_read_again_when_they_may_ask() -> None:
    """While others are refused, no connection is read again before its time."""

    async def play() -> None:
        limits = limits_of()
        early, late = FakeConnection(), FakeConnection()
        limits.backing_off.add(early, 1.0)
        for _ in range(8):
            await asyncio.sleep(0.1)
            other = FakeConnection()
            limits.backing_off.add(other, 5.0)
            limits.backing_off.discard(other)
        assert not early.read_again
        limits.backing_off.add(late, 1.0)
        await asyncio.sleep(0.25)
        assert early.read_again

    virtually(play())


def test_refused_connections_are_read_again_earlier_if_nobody_is_refused() -> None:
    """The oldest first, few at first; all of them when the server ends."""

    async def play() -> None:
        limits = limits_of()
        connections = [FakeConnection() for _ in range(10)]
        for connection in connections:
            limits.backing_off.add(connection, 60.0)
        await asyncio.sleep(0.28)
        resumed = [connection.read_again for connection in connections]
        assert any(resumed)
        assert not all(resumed)
        assert resumed == sorted(resumed, reverse=True)
        limits.backing_off.end()
        assert all(connection.read_again for connection in connections)

    virtually(play())


def test_the_longest_idle_go_first() -> None:
    """A new connection takes the place of the one that has been idle longest, and gives it back when it ends."""
    limits = limits_of(max_connections=2)
    first, second, third = (FakeConnection() for _ in range(3))
    admitted(limits, 1.0, first)
    admitted(limits, 2.0, second)
    assert admitted(limits, 10.0, third) == [ConnectionPlace.REGULAR]
    assert [each.closed for each in (first, second, third)] == [True, False, False]
    limits.release(first)
    limits.release(third)
    assert repr(limits) == "<ConnectionLimits 1/2 connections, 0 spare, 0 requests>"


def test_a_caller_that_is_about_to_ask_stays() -> None:
    """Neither a busy connection nor one that fell idle just now is closed; the new one gets a spare place."""
    limits = limits_of(max_connections=2)
    busy, fresh, new = FakeConnection(busy=True), FakeConnection(), FakeConnection()
    admitted(limits, 1.0, busy)
    admitted(limits, 9.5, fresh)
    assert admitted(limits, 10.0, new) == [ConnectionPlace.SPARE]
    assert not fresh.closed
    limits.close_late_spares(10.5)
    assert not new.closed
    limits.close_late_spares(11.0)
    assert new.closed


def test_unfinished_bodies_go_after_the_idle() -> None:
    """A connection whose body is not complete is closed later than an idle one, and is kept for longer."""
    limits = limits_of(max_connections=2)
    uploading, idle = FakeConnection(), FakeConnection()
    admitted(limits, 1.0, uploading, idle)
    limits.uploading[uploading] = limits.idle.pop(uploading)
    one, two, three = FakeConnection(), FakeConnection(), FakeConnection()
    assert admitted(limits, 3.0, one) == [ConnectionPlace.REGULAR]
    assert (uploading.closed, idle.closed) == (False, True)
    one.busy = True
    assert admitted(limits, 5.0, two) == [ConnectionPlace.SPARE]
    assert admitted(limits, 6.0, three) == [ConnectionPlace.REGULAR]
    assert uploading.closed


def test_the_newest_gets_a_spare_place() -> None:
    """If all spare places are taken, the oldest without a request under way gives its place to the newest."""
    limits = limits_of(max_connections=1)
    admitted(limits, 1.0, FakeConnection(busy=True))
    spares = [FakeConnection(busy=number == 0) for number in range(200)]
    admitted(limits, 1.0, *spares)
    assert 4 <= len(limits.spare) <= 64
    assert spares[-1] in limits.spare
    assert not spares[0].closed


def test_an_address_has_a_share() -> None:
    """One address takes three quarters of the places; beyond that its own idle connections go, and no others'."""
    limits = limits_of(max_connections=80)
    other = FakeConnection("b")
    admitted(limits, 0.0, other)
    ours = [FakeConnection("a", busy=True) for _ in range(60)]
    assert set(admitted(limits, 1.0, *ours)) == {ConnectionPlace.REGULAR}
    assert admitted(limits, 9.0, FakeConnection("a")) == [ConnectionPlace.SPARE]
    ours[7].busy = False
    assert admitted(limits, 9.0, FakeConnection("a")) == [ConnectionPlace.REGULAR]
    assert (ours[7].closed, other.closed) == (True, False)
    assert set(admitted(limits, 9.0, *(FakeConnection(None) for _ in range(19)))) == {ConnectionPlace.REGULAR}
    assert limits_of(max_connections=80, max_connections_per_address=0).most_of_address == sys.maxsize


def test_the_default_lines_follow_the_servers_headers() -> None:
    """The date is another one every second."""
    limits = limits_of()
    limits.default_headers = [(b"date", b"one")]
    assert limits.default_lines() == b"date: one\r\n"
    limits.default_headers = [(b"date", b"two")]
    assert limits.default_lines() == b"date: two\r\n"
