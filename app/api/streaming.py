"""One response as an event stream (RCP §5.2, §9): progress while engines are asked, then the response.

A caller that reads slowly hears the latest progress of each stage, and one that does not read is disconnected. Comments
keep an idle stream open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, ClassVar, Protocol

from app.federation.progress import ProgressListener
from app.protocol import envelope, sse
from app.settings.schema import ServerSettings
from app.telemetry.logs import logger

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROGRESS = "notifications/progress"
LOG = "notifications/log"
RESPONSE = "response"
"""The kind of the last frame; the others are of the kind of their `stage`."""


class StreamProgressListener(ProgressListener, Protocol):
    """A caller's ear, as its door has it."""

    @property
    def logs_alone(self) -> bool:
        """Whether it hears lines for its log also if it did not ask for progress."""
        ...


class EventStream:
    """The stream of one request. Nothing is sent before `open`; `end` must always be called.

    `hang_up` is called when the caller is given up before its response is there.
    """

    __slots__ = (
        "_hang_up",
        "_lines",
        "_request_id",
        "_send",
        "_sending",
        "_settings",
        "_waiting",
        "_wake",
        "_writer",
        "given_up",
    )

    logs_alone: ClassVar[bool] = False
    """Without progress there is a plain answer, which has no place for them."""

    def __init__(self, send: Send, request_id: str, settings: ServerSettings, hang_up: Callable[[], None]) -> None:
        self._send = send
        self._request_id = request_id
        self._settings = settings
        self._hang_up = hang_up
        self._waiting: list[tuple[str, bytes]] = []
        self._wake = asyncio.Event()
        self._sending = False
        self._lines = 0
        self._writer: asyncio.Task[None] | None = None
        self.given_up = False
        """The caller did not take it; its connection is of no more use."""

    @property
    def opened(self) -> bool:
        """Whether the answer is a stream; until then it may still be a plain one."""
        return self._writer is not None

    @property
    def ready(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._sending and not self._waiting

    def open(self) -> None:
        """Begin the stream, once."""
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def send(self, progress: Mapping[str, Any]) -> None:
        """Let the caller know (RCP §9); a progress that it has not read when the next of its stage comes is dropped."""
        self._add(progress["stage"], sse.frame(progress_message(progress)))

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a line for the caller's log (RCP §17.1); each is of a kind of its own, so that none replaces another."""
        self.notify(envelope.encode_notification(LOG, line))

    def notify(self, notification: bytes) -> None:
        """Send a notification that no later one replaces."""
        self._lines += 1
        self._add(f"{LOG} {self._lines}", sse.frame(notification))

    async def finish(self, response: bytes) -> None:
        """Send the response as the last frame and end the stream, unless the caller does not take it."""
        self.open()
        self._add(RESPONSE, sse.frame(response))
        assert self._writer is not None
        await self._writer

    async def end(self) -> None:
        """Let go of the stream, however far it has come."""
        if self._writer is not None and not self._writer.done():
            self._writer.cancel()
            await asyncio.wait([self._writer])

    def _add(self, kind: str, frame: bytes) -> None:
        if self._sending:  # the caller reads more slowly than engines end: the newest of each kind is all it needs
            self._waiting = [*{**dict(self._waiting), kind: frame}.items()]
        else:
            self._waiting.append((kind, frame))
        self._wake.set()

    async def _write(self) -> None:
        try:
            await self._put({"type": "http.response.start", "status": 200, "headers": self._headers()})
            kind = ""
            while kind != RESPONSE:
                kind, frame = await self._next()
                await self._put({"type": "http.response.body", "body": frame, "more_body": True})
                # By its next turn the server knows whether the frame went out. If not, it makes even nothing wait.
                await asyncio.sleep(0)
                await self._put({"type": "http.response.body", "body": b"", "more_body": True})
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError as fault:  # TimeoutError is one
            if isinstance(fault, TimeoutError):
                logger().warning("slow_caller", request_id=self._request_id, frames_waiting=len(self._waiting))
            self.given_up = True
            self._hang_up()

    async def _next(self) -> tuple[str, bytes]:
        """The next frame; a comment if there is none for too long."""
        if not self._waiting:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._settings.sse_comment_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return "", sse.COMMENT
        return self._waiting.pop(0)

    async def _put(self, event: MutableMapping[str, Any]) -> None:
        """Hand one event to the server. Raises TimeoutError if the caller does not make room for it in time."""
        self._sending = True
        async with asyncio.timeout(self._settings.send_timeout_seconds):
            await self._send(event)
        self._sending = False

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", self._request_id.encode()),
        ]

    def __repr__(self) -> str:
        state = "not opened" if self._writer is None else "ended" if self._writer.done() else "open"
        return f"<EventStream {self._request_id} {state}, {len(self._waiting)} frames waiting>"


def progress_message(progress: Mapping[str, Any]) -> bytes:
    """The notification that tells it (RCP §9)."""
    try:
        return envelope.encode_notification(PROGRESS, progress)
    except TypeError:  # a hit nests deeper than can be written: the response will cut it off there
        bare = {key: value for key, value in progress.items() if key != "partial"}
        return envelope.encode_notification(PROGRESS, bare)
