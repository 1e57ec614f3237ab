"""The protocol of the doors: what it passes over and bounds, whom it loses patience with, answers in one go."""

from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api import wire
from app.api.doorway import Doorway
from app.api.wire import DoorProtocol, Exchange
from app.settings.schema import ServerSettings
from tests.support.fake_transport import FakeTransport


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


def exchange_of(*, kept: bool = True, paused: bool = False) -> tuple[Exchange, Any]:
    """An exchange whose request was read, and the transport it is answered through."""
    doorway = Doorway(ServerSettings, print, lambda app: app, lambda target: None)
    doorway.default_headers = [(b"date", b"today")]
    transport = SimpleNamespace(written=[], closed=False)
    transport.send, transport.close = transport.written.append, lambda: setattr(transport, "closed", True)
    door: Any = SimpleNamespace(
        parser=SimpleNamespace(should_keep_alive=lambda: kept),
        server_state=doorway,
        scope={"http_version": "1.1", "path": "/rcp"},
        transport=transport,
        flow=SimpleNamespace(write_paused=paused),
        logger=None,
        access_logger=None,
        access_log=False,
        expect_100_continue=False,
        on_response_complete=lambda: transport.written.append(b"complete"),
    )
    return Exchange(door), transport


async def test_an_answer_in_one_go_is_the_one_of_two_events() -> None:
    """Status, the server's headers, ours, the length, the body; then it is over, and is not answered twice."""
    exchange, transport = exchange_of()
    assert exchange.answer_at_once(b"x-request-id: r\r\n", b"{}")
    assert transport.written == [
        b"HTTP/1.1 200 OK\r\ndate: today\r\nx-request-id: r\r\ncontent-length: 2\r\n\r\n{}",
        b"complete",
    ]
    assert (transport.closed, repr(exchange)) == (False, "<Exchange /rcp answered>")
    assert not exchange.answer_at_once(b"", b"{}")


async def test_the_last_answer_of_a_connection_says_so() -> None:
    """Where the caller or the gateway keeps no connection, the answer carries `connection: close` and closes it."""
    exchange, transport = exchange_of(kept=False)
    assert exchange.answer_at_once(b"", b"{}")
    assert b"\r\nconnection: close\r\n" in transport.written[0]
    assert transport.closed


async def test_who_does_not_read_or_is_gone_is_answered_by_events() -> None:
    """Behind unread bytes an answer has to wait, and nobody is there to be answered in one go once gone."""
    exchange, _ = exchange_of(paused=True)
    assert not exchange.answer_at_once(b"", b"{}")
    exchange, transport = exchange_of()
    exchange.disconnected = True
    assert not exchange.answer_at_once(b"", b"{}")
    assert transport.written == []
