"""The corked transport: two writes of one iteration leave as one, and nothing is held longer or lost."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api import wire
from app.api.wire import CorkedTransport, DoorProtocol, Doorway
from app.settings.schema import ServerSettings
from tests.support.virtual_time import turns


class FakeTransport:
    """Keeps what was written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing, "written to after it was closed"
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> str:
        return f"extra {name}"


@pytest.fixture
async def pair() -> tuple[CorkedTransport, FakeTransport]:
    """A corked transport and the one behind it."""
    behind: Any = FakeTransport()
    return CorkedTransport(behind, asyncio.get_running_loop()), behind


async def test_head_and_body_leave_as_one(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """Two writes of one iteration are one write, at once."""
    corked, behind = pair
    corked.write(b"head ")
    assert behind.written == []
    corked.write(b"body")
    assert behind.written == [b"head body"]
    await turns()
    assert behind.written == [b"head body"]


async def test_single_write_leaves_with_the_iteration(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """A write that stays alone is not held beyond the iteration."""
    corked, behind = pair
    corked.write(b"alone")
    assert repr(corked).startswith("<CorkedTransport holding 5 bytes of ")
    await turns(1)
    assert behind.written == [b"alone"]


@pytest.mark.parametrize("count", [3, 4, 5])
async def test_order_is_kept(pair: tuple[CorkedTransport, FakeTransport], count: int) -> None:
    """However many writes there are, all bytes leave once and in order."""
    corked, behind = pair
    for number in range(count):
        corked.write(b"%d" % number)
    await turns()
    assert b"".join(behind.written) == b"01234"[:count]


async def test_closing_sends_what_is_held_first(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """What is held when the server closes the connection is sent before."""
    corked, behind = pair
    corked.write(b"last words")
    corked.close()
    assert (behind.written, behind.closing) == ([b"last words"], True)
    await turns()


async def test_nothing_is_written_to_a_lost_connection(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """If the caller goes away between a write and the end of the iteration, what is held is dropped in silence."""
    corked, behind = pair
    corked.write(b"too late")
    behind.close()
    await turns()
    assert behind.written == []


async def test_everything_else_is_the_transport(pair: tuple[CorkedTransport, FakeTransport]) -> None:
    """What is no writing goes straight through."""
    corked, _ = pair
    assert corked.get_extra_info("peername") == "extra peername"
    assert not corked.is_closing()


def test_door_ignores_offers_to_upgrade_and_bounds_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """An h2c offer is read as any other header; a head without end is refused with 400 instead of kept."""
    fed: list[bytes] = []
    refused: list[str] = []
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda self, data: fed.append(data))
    monkeypatch.setattr(HttpToolsProtocol, "send_400_response", lambda self, message: refused.append(message))
    door = DoorProtocol.__new__(DoorProtocol)
    door.transport = FakeTransport()  # type: ignore[assignment]
    offer = b"POST /rcp HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n{}"
    door.data_received(offer)
    assert fed == [offer.replace(b"\r\nUpgrade:", b"\r\nX-grade:")]
    for _ in range(3):
        door.data_received(b"x" * 30_000)
    assert refused == ["The head of the request is too long."]


def door_at(cycle: Any = None, *, receiving: bool = False, unread: int = 0) -> tuple[Any, FakeTransport, list[str]]:
    """A connection in some state, its transport, and why it was cut."""
    cut: list[str] = []
    door: Any = DoorProtocol.__new__(DoorProtocol)
    behind: Any = FakeTransport()
    behind.lingers_until = None
    behind.get_write_buffer_size = lambda: unread
    behind.abort = behind.close
    door.transport, door.cycle, door._receiving = behind, cycle, receiving
    door.flow = SimpleNamespace(write_paused=False)
    door.server_state = Doorway(ServerSettings, cut.append, lambda app: app, lambda target: None)
    return door, behind, cut


ASKED = SimpleNamespace(response_complete=False, response_started=False, more_body=False)
SENDING = SimpleNamespace(response_complete=False, response_started=False, more_body=True)
ANSWERED = SimpleNamespace(response_complete=True, response_started=True, more_body=False)


@pytest.mark.parametrize(
    ("state", "waits_for", "seconds", "reason"),
    [
        ({"cycle": None}, "nothing", 75.0, None),
        ({"cycle": ANSWERED}, "nothing", 75.0, None),
        ({"cycle": None, "receiving": True}, "request", 60.0, "message_timeout"),
        ({"cycle": SENDING, "receiving": True}, "request", 60.0, "message_timeout"),
        ({"cycle": ANSWERED, "unread": 10}, "reader", 30.0, "unread"),
        ({"cycle": ASKED}, "answer", None, None),
    ],
)
def test_patience_is_lost_in_time(state: Any, waits_for: str, seconds: float | None, reason: str | None) -> None:
    """A connection is cut once it has kept the gateway waiting for its time, and never while the gateway is at work."""
    door, behind, cut = door_at(**state)
    assert repr(door).startswith(f"<DoorProtocol waits for {waits_for}")
    door.look(1000.0)
    door.look(1000.0 + (seconds or 1e6) - 0.1)
    assert not behind.closing
    if seconds is not None:
        door.look(1000.0 + seconds)
        assert behind.closing
    assert cut == ([] if reason is None else [reason])


def test_progress_is_patience() -> None:
    """Whoever reads a little between two looks is not cut, however long it takes; another request begins anew."""
    door, behind, cut = door_at(ANSWERED, unread=1000)
    for left in range(1000, 900, -1):
        behind.get_write_buffer_size = lambda left=left: left  # type: ignore[misc]
        door.look((1000 - left) * 29.0)
    assert not behind.closing
    door, behind, cut = door_at(ANSWERED, receiving=True)
    for number in range(100):
        door._messages = number
        door.look(number * 59.0)
    assert (behind.closing, cut) == (False, [])


def test_who_has_just_connected_is_given_time_to_ask() -> None:
    """At the end an idle connection is closed at once, but not one whose first request may be on its way."""
    door, behind, _ = door_at(None)
    behind.hang_up = behind.close  # type: ignore[attr-defined]
    now = 10.0
    door.loop, door._since = SimpleNamespace(time=lambda: now), 10.0
    behind.get_extra_info = lambda name: None  # type: ignore[assignment, return-value]
    door.leave()
    now += wire.FIRST_REQUEST_SECONDS - 0.1
    door.leave()
    assert not behind.closing
    door._messages = 1
    door.leave()
    assert behind.closing
    door, behind, _ = door_at(None)
    behind.hang_up = behind.close  # type: ignore[attr-defined]
    behind.get_extra_info = lambda name: None  # type: ignore[assignment, return-value]
    door.loop, door._since = SimpleNamespace(time=lambda: 10.0 + wire.FIRST_REQUEST_SECONDS), 10.0
    door.leave()
    assert behind.closing


async def test_hanging_up_is_seen_at_once() -> None:
    """The caller's system knows of the end before the loop goes on: it sends no request into a closed connection."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
    corked: Any = CorkedTransport(transport, asyncio.get_running_loop())
    corked.hang_up()
    assert theirs.recv(1) == b""
    assert corked.is_closing()
    await turns()
    theirs.close()
