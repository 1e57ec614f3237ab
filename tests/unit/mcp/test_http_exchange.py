"""One exchange: its names, and what it does with callers that do not read."""

import asyncio
from typing import Any

import pytest

from app.mcp.http_exchange import McpHttpExchange
from tests.support.log_lines import own_log
from tests.support.running_gateway import PATIENCE

Event = dict[str, Any]


def exchange(sent: list[Event], timeout: float = 10.0, **headers: str) -> McpHttpExchange:
    """Of a request with these headers; what is sent is kept."""

    async def send(event: Any) -> None:
        sent.append(event)

    written = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return McpHttpExchange({"method": "POST", "headers": written}, send, timeout, lambda: "made-1")


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"mcp_protocol_version": "2026-07-28", "mcp_session_id": "s"}, None),
        ({"mcp_protocol_version": "2025-11-25", "mcp_session_id": "s"}, "s"),
        ({"mcp_protocol_version": "2025-11-25"}, None),
        ({"mcp_session_id": "s"}, "s"),
        ({"mcp_session_id": "s" * 257}, None),
    ],
)
async def test_a_session_is_what_the_client_says(headers: dict[str, str], session: str | None) -> None:
    """A client names its session, if it is of an era that has any, and not at any length; none is handed out to it."""
    sent: list[Event] = []
    made = exchange(sent, **headers)
    assert made.session == session
    await made.answer(200, b"{}")
    assert b"mcp-session-id" not in dict(sent[0]["headers"])


async def test_a_session_is_handed_out_once_all_is_well() -> None:
    """Who names no version yet is given a session with an answer of 200, and with no other."""
    for status, told in ((200, True), (401, False)):
        sent: list[Event] = []
        made = exchange(sent)
        await made.answer(status, b"{}")
        assert (dict(sent[0]["headers"]).get(b"mcp-session-id") == str(made.session).encode()) == told
        assert dict(sent[0]["headers"])[b"x-request-id"] == b"made-1"


async def test_nothing_is_added_to_an_answer_that_began() -> None:
    """A second answer is dropped."""
    sent: list[Event] = []
    made = exchange(sent)
    await made.answer(200, b"{}")
    await made.answer(503, b"[]")
    assert [event.get("status") for event in sent] == [200, None]
    assert made.broken_off is False
    await made.send({"type": "http.response.body", "body": b"", "more_body": True})
    assert made.broken_off is True
    assert repr(made) == "<Exchange made-1 answering>"


async def test_a_caller_that_makes_no_room_is_given_up() -> None:
    """The task that serves it is cancelled, and the exchange swallows that end; another's cancel goes on."""

    async def stuck(event: Any) -> None:
        await asyncio.Event().wait()

    async def serve(timeout: float) -> McpHttpExchange:
        with McpHttpExchange({"method": "POST", "headers": []}, stuck, timeout, lambda: "made-1") as made:
            reporter = asyncio.create_task(made.answer(200, b"{}"))
            await asyncio.wait([reporter])
            with pytest.raises(TimeoutError):
                reporter.result()
            await asyncio.Event().wait()
        return made

    made = await asyncio.wait_for(serve(0.01), PATIENCE)
    assert repr(made) == "<Exchange made-1 given up>"
    waiting = asyncio.create_task(serve(60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_stream_that_is_cut_short_has_a_last_message() -> None:
    """Who reads events is told in one why there are no more; an answer of JSON that broke off stays as it is."""
    for kind, told in (
        (b"text/event-stream; charset=utf-8", b"event: message\r\ndata: {}\r\n\r\n"),
        (b"text/plain", b""),
    ):
        sent: list[Event] = []
        made = exchange(sent)
        await made.send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await made.send({"type": "http.response.body", "body": b"", "more_body": True})
        await made.answer(401, b"{}")
        assert b"".join(event.get("body", b"") for event in sent) == told
        assert made.broken_off == (not told)


async def test_the_line_has_the_bytes_of_the_answer() -> None:
    """The log is told when the answer is sent, if there was a message, or at once if that is known only afterwards."""
    with own_log() as log:
        for line in (None, {"method": "ping"}):
            made = exchange([])
            if line is not None:
                made.note(line)
            await made.answer(200, b"{...}")
            made.tell()
        made.note({"method": "late"})
    told = [(line["event"], line["method"], line["bytes"]) for line in log.lines]
    assert told == [("mcp", "ping", 5), ("mcp", "late", 5)]
