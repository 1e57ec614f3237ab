"""One answer as an event stream: frames in order, comments, slow callers, callers that leave. By a clock that jumps."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.api.caller import Caller
from app.api.rpc import RpcEndpoint
from app.api.streaming import EventStream
from app.settings.schema import ServerSettings
from tests.support.fake_engine import FakeEngines
from tests.support.fake_gateway import Exchange, state_of
from tests.support.log_lines import LogLines, own_log
from tests.support.virtual_time import jumping_loop, turns, virtually

COMMENT = b": keep-alive\n\n"
RESPONSE = b'{"jsonrpc":"2.0","id":1,"result":{}}'
FINAL = b"data: " + RESPONSE + b"\n\n"


@pytest.fixture(autouse=True)
def log() -> Iterator[LogLines]:
    """What is logged meanwhile."""
    with own_log() as lines:
        yield lines


def recall(number: int, **more: Any) -> dict[str, Any]:
    """One progress of the stage recall."""
    return {"progressToken": "t", "progress": number / 10, "stage": "recall", **more}


def fuse() -> dict[str, Any]:
    """The progress of the stage fuse."""
    return {"progressToken": "t", "progress": 1.0, "stage": "fuse"}


def told(frame: bytes) -> Any:
    """What a frame says: the params of a progress, or the response."""
    message = json.loads(frame.removeprefix(b"data: "))
    return message["params"] if "method" in message else message


class FarEnd:
    """The other end of a stream: takes what is sent, by the loop's clock, or takes no more after so many events."""

    def __init__(self, *, takes: int = 1000, **settings: Any) -> None:
        self.takes = takes
        self.events: list[tuple[float, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone: list[str] = []
        self.breaks: OSError | None = None
        self.stream = EventStream(
            self.send, "r-1", ServerSettings.model_validate(settings), lambda: self.gone.append("hung up")
        )

    async def send(self, event: Any) -> None:
        if self.breaks is not None:
            raise self.breaks
        if len(self.events) >= self.takes:
            self.reads.clear()
        await self.reads.wait()
        if event.get("body") or not event.get("more_body"):
            self.events.append((asyncio.get_running_loop().time() - 1000, event))

    @property
    def frames(self) -> list[bytes]:
        """The bodies received so far."""
        return [event["body"] for _, event in self.events[1:] if event["body"]]

    @property
    def whole(self) -> bool:
        """Whether the answer was ended as HTTP wants it."""
        return bool(self.events) and self.events[-1][1].get("more_body") is False


async def all_gone() -> None:
    """Nobody but the test itself is running."""
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_frames_come_in_order_and_the_response_is_last() -> None:
    """Head first, then each progress when it is told, then the response, then the end."""

    async def story() -> None:
        caller = FarEnd()
        assert not caller.stream.opened
        assert repr(caller.stream) == "<EventStream r-1 not opened, 0 frames waiting>"
        caller.stream.open()
        caller.stream.open()
        await turns()
        assert caller.stream.opened
        (_, head), *rest = caller.events
        assert (head["type"], head["status"], rest) == ("http.response.start", 200, [])
        assert dict(head["headers"]) == {
            b"content-type": b"text/event-stream; charset=utf-8",
            b"cache-control": b"no-cache",
            b"x-accel-buffering": b"no",
            b"x-request-id": b"r-1",
        }
        await asyncio.sleep(1)
        caller.stream.send(recall(1))
        await asyncio.sleep(1)
        caller.stream.send(recall(2))
        caller.stream.send(recall(3))
        caller.stream.send(fuse())
        assert repr(caller.stream) == "<EventStream r-1 open, 3 frames waiting>"
        await caller.stream.finish(RESPONSE)
        assert [told(frame) for frame in caller.frames] == [
            recall(1),
            recall(2),
            recall(3),
            fuse(),
            json.loads(RESPONSE),
        ]
        assert [at for at, _ in caller.events] == [0, 1, 2, 2, 2, 2, 2]
        assert caller.whole
        assert caller.gone == []
        assert repr(caller.stream) == "<EventStream r-1 ended, 0 frames waiting>"
        await caller.stream.end()
        await all_gone()

    virtually(story())


def test_progress_is_a_notification() -> None:
    """A progress is a JSON-RPC notification in one frame, and what was not told is not there."""

    async def story() -> None:
        caller = FarEnd()
        caller.stream.open()
        caller.stream.send(recall(1))
        await caller.stream.finish(RESPONSE)
        first, last = caller.frames
        assert first == (
            b'data: {"jsonrpc":"2.0","method":"notifications/progress",'
            b'"params":{"progressToken":"t","progress":0.1,"stage":"recall"}}\n\n'
        )
        assert last == FINAL

    virtually(story())


def test_response_alone_is_a_stream_too() -> None:
    """A stream without any progress is its response."""

    async def story() -> None:
        caller = FarEnd()
        await caller.stream.finish(RESPONSE)
        assert caller.frames == [FINAL]
        assert caller.whole

    virtually(story())


def test_quiet_stream_carries_a_comment() -> None:
    """Fifteen seconds without a frame bring a comment, each time; every frame begins them anew (B71)."""

    async def story() -> None:
        caller = FarEnd()
        caller.stream.open()
        await asyncio.sleep(31)
        assert [(at, event["body"]) for at, event in caller.events[1:]] == [(15, COMMENT), (30, COMMENT)]
        caller.stream.send(recall(1))
        await asyncio.sleep(14)
        caller.stream.send(recall(2))
        await asyncio.sleep(16)
        await caller.stream.finish(RESPONSE)
        assert [at for at, event in caller.events[1:] if event["body"] == COMMENT] == [15, 30, 60]
        assert caller.frames[-1] == FINAL

    virtually(story())


def test_pause_before_a_comment_is_a_setting() -> None:
    """`server.sse_comment_seconds` says after how long."""

    async def story() -> None:
        caller = FarEnd(sse_comment_seconds=2)
        caller.stream.open()
        await asyncio.sleep(7)
        await caller.stream.end()
        assert [at for at, _ in caller.events[1:]] == [2, 4, 6]

    virtually(story())


def test_slow_caller_hears_the_newest_of_each_kind() -> None:
    """Whoever does not read has one frame per kind waiting, the newest; the response is never dropped (B67)."""

    async def story() -> None:
        caller = FarEnd()
        caller.stream.open()
        caller.stream.send(recall(0))
        await turns()
        caller.reads.clear()
        caller.stream.send(recall(1))
        await turns()
        for number in range(2, 1000):
            caller.stream.send(recall(number))
            assert repr(caller.stream) == "<EventStream r-1 open, 1 frames waiting>"
        caller.stream.send(fuse())
        finishing = asyncio.create_task(caller.stream.finish(RESPONSE))
        await asyncio.sleep(29)
        assert repr(caller.stream) == "<EventStream r-1 open, 3 frames waiting>"
        caller.reads.set()
        await finishing
        assert [told(frame) for frame in caller.frames] == [
            recall(0),
            recall(1),
            recall(999),
            fuse(),
            json.loads(RESPONSE),
        ]
        assert caller.whole
        assert caller.gone == []

    virtually(story())


@pytest.mark.parametrize("seconds", [30, 2])
def test_caller_that_does_not_read_is_given_up(log: LogLines, seconds: float) -> None:
    """After `send_timeout_seconds` without room for a frame the request is cancelled, and the log says so (B67)."""

    async def story() -> None:
        caller = FarEnd(send_timeout_seconds=seconds)
        caller.stream.open()
        await turns()
        caller.reads.clear()
        caller.stream.send(recall(1))
        await asyncio.sleep(seconds - 0.5)
        caller.stream.send(recall(2))
        assert caller.gone == []
        await asyncio.sleep(1)
        assert caller.gone == ["hung up"]
        await all_gone()
        assert not caller.whole
        await caller.stream.end()

    virtually(story())
    (line,) = log.lines
    assert (line["event"], line["request_id"], line["frames_waiting"]) == ("slow_caller", "r-1", 1)


@pytest.mark.parametrize(("takes", "frames"), [(0, []), (1, []), (2, [FINAL])], ids=["head", "response", "end"])
def test_caller_that_does_not_read_the_response_is_given_up(takes: int, frames: list[bytes]) -> None:
    """Nor do the response or its end wait for ever; the answer stays unfinished, so that the server breaks off."""

    async def story() -> None:
        caller = FarEnd(takes=takes)
        await caller.stream.finish(RESPONSE)
        assert asyncio.get_running_loop().time() == 1030
        assert caller.frames == frames
        assert not caller.whole
        await all_gone()

    virtually(story())


def test_caller_that_is_gone_is_no_slow_one(log: LogLines) -> None:
    """A server that says the caller is gone ends the stream; that is nothing to warn of."""

    async def story() -> None:
        caller = FarEnd()
        caller.stream.open()
        await turns()
        caller.breaks = ConnectionResetError("gone")
        caller.stream.send(recall(1))
        await turns()
        assert caller.gone == ["hung up"]
        await caller.stream.finish(RESPONSE)
        await all_gone()

    virtually(story())
    assert log.lines == []


@pytest.mark.parametrize("reads", [True, False])
def test_end_lets_go_at_any_moment(reads: bool) -> None:
    """A stream that is ended before its response leaves no task, whatever it was waiting for."""

    async def story() -> None:
        caller = FarEnd()
        await caller.stream.end()
        if not reads:
            caller.reads.clear()
        caller.stream.open()
        caller.stream.send(recall(1))
        await turns()
        await caller.stream.end()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert caller.gone == []

    virtually(story())


def test_hit_that_cannot_be_written_costs_its_list() -> None:
    """A hit that nests deeper than can be written is told without the list; the response has it cut off."""

    async def story() -> None:
        deep: Any = {}
        for _ in range(400):
            deep = {"deep": deep}
        caller = FarEnd()
        caller.stream.open()
        caller.stream.send(recall(1, partial={"hits": [deep]}))
        await caller.stream.finish(RESPONSE)
        assert told(caller.frames[0]) == recall(1)

    virtually(story())


# At the endpoint

QUESTION = b'{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":"q","_meta":{"progressToken":"t"}}}'


class Script:
    """A dispatcher that opens the stream it is given and then does as it is told."""

    def __init__(self, then: Any, *, opens: bool = True) -> None:
        self._then = then
        self._opens = opens
        self.ended: list[str] = []

    async def message(self, message: Any, caller: Caller, path_method: str | None, stream: Any = None) -> bytes | None:
        assert stream is not None
        if self._opens:
            stream.open()
        try:
            answer: bytes | None = await self._then(stream)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        return answer

    def knows(self, engine_id: str) -> bool:
        return False

    def endpoint(self, **settings: Any) -> Any:
        return RpcEndpoint(self, state_of(FakeEngines(), {"server": settings}))  # type: ignore[arg-type]


def asking(**more: Any) -> Exchange:
    """A request for events."""
    return Exchange(chunks=(QUESTION,), headers=[(b"accept", b"application/json, text/event-stream")], **more)


async def answer(stream: EventStream) -> bytes:
    stream.send(recall(1))
    return RESPONSE


async def never(stream: EventStream) -> bytes:
    stream.send(recall(1))
    await asyncio.Event().wait()
    return RESPONSE


def test_endpoint_answers_with_a_stream_once_it_is_open() -> None:
    """A stream that was opened carries the answer; it has no Content-Length and is not compressed (B71)."""

    async def story() -> None:
        exchange = asking()
        exchange.headers.append((b"accept-encoding", b"gzip, br"))
        await exchange.run(Script(answer).endpoint())
        assert exchange.status == 200
        assert exchange.header("content-type") == "text/event-stream; charset=utf-8"
        assert exchange.header("content-length") is None
        assert exchange.header("content-encoding") is None
        assert exchange.header("x-request-id")
        assert [told(event["body"]) for event in exchange.sent[1:] if event["body"]] == [
            recall(1),
            json.loads(RESPONSE),
        ]
        await all_gone()

    virtually(story())


@pytest.mark.parametrize("body", [RESPONSE, None])
async def test_endpoint_answers_plainly_while_it_is_not(body: bytes | None) -> None:
    """A stream that was never opened leaves the plain answer, or none."""

    async def plainly(stream: EventStream) -> bytes | None:
        return body

    exchange = await asking().run(Script(plainly, opens=False).endpoint())
    assert exchange.status == (204 if body is None else 200)
    assert exchange.body == (body or b"")


def test_caller_that_hangs_up_ends_its_stream() -> None:
    """A disconnect cancels the request at once; the stream's task is gone with it, and no end is sent (B36, B65)."""

    async def story() -> None:
        script, exchange = Script(never), asking()
        serving = asyncio.create_task(exchange.run(script.endpoint()))
        await asyncio.sleep(0.2)
        sent = len(exchange.sent)
        exchange.hang_up.set()
        await turns()
        assert serving.done()
        assert not serving.cancelled()
        assert script.ended == ["cancelled"]
        assert len(exchange.sent) == sent
        await all_gone()

    virtually(story())


def test_slow_caller_loses_its_request() -> None:
    """A caller that does not read is given up by cancelling its request; the server's task goes on (B67)."""

    async def story() -> None:
        script = Script(never)
        exchange = asking()
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)
            if len(sent) > 1:
                await asyncio.Event().wait()

        events = exchange._events()
        serving = asyncio.create_task(script.endpoint()(exchange.scope, events.__anext__, send))
        await serving
        assert jumping_loop().time() == 1030
        assert script.ended == ["cancelled"]
        await all_gone()

    virtually(story())


def test_server_that_shuts_down_ends_the_stream() -> None:
    """A cancellation from the server goes through, before the response and while it is being sent."""

    async def story(then: Any) -> None:
        exchange = asking()

        async def send(event: Any) -> None:
            exchange.sent.append(event)
            if len(exchange.sent) > 1:
                await asyncio.Event().wait()

        events = exchange._events()
        serving = asyncio.create_task(Script(then).endpoint()(exchange.scope, events.__anext__, send))
        await asyncio.sleep(0.2)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert serving.cancelled()
        await all_gone()

    for then in (never, answer):
        virtually(story(then))
