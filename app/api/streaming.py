"""A response as an event stream (RCP §5.2, §9): progress while engines work, then the response.

A slow reader gets only the latest progress of each stage, and a caller that does not read is disconnected. Comments
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
"""The kind of the last frame. The kind of a progress frame is its `stage`."""


class StreamProgressListener(ProgressListener, Protocol):
    """Receives progress for a caller, as the dispatcher sees it."""

    @property
    def logs_alone(self) -> bool:
        """Whether log lines can be sent to a caller that did not request progress."""
        ...


class EventStream:
    """The stream of one request. Nothing is sent before `open`; `end` must always be called.

    `hang_up` is called if the caller does not read, to cancel the work for it.
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
    """Without progress the response is plain JSON, which cannot contain log lines."""

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
        """The caller did not read in time or disconnected; its connection has to be closed."""

    @property
    def opened(self) -> bool:
        """Whether the stream has begun. Until then, the response can still be plain JSON."""
        return self._writer is not None

    @property
    def ready(self) -> bool:
        """Whether all frames have been sent."""
        return not self._sending and not self._waiting

    def open(self) -> None:
        """Begin the stream. Further calls do nothing."""
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def send(self, progress: Mapping[str, Any]) -> None:
        """Send progress (RCP §9). Unsent progress is replaced by the next of the same stage."""
        self._add(progress["stage"], sse.frame(progress_message(progress)))

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a line of the log (RCP §17.1)."""
        self.notify(envelope.encode_notification(LOG, line))

    def notify(self, notification: bytes) -> None:
        """Send a notification that no later one replaces."""
        # A kind of its own for each, since frames of the same kind replace each other.
        self._lines += 1
        self._add(f"{LOG} {self._lines}", sse.frame(notification))

    async def finish(self, response: bytes) -> None:
        """Send the response as the last frame, and wait until it is sent or the caller is given up."""
        self.open()
        self._add(RESPONSE, sse.frame(response))
        assert self._writer is not None
        await self._writer

    async def end(self) -> None:
        """Release the stream, whether it is complete or not."""
        if self._writer is not None and not self._writer.done():
            self._writer.cancel()
            await asyncio.wait([self._writer])

    def _add(self, kind: str, frame: bytes) -> None:
        if self._sending:
            # The caller reads more slowly than engines answer, so only the newest frame of each kind is kept.
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
                # In the next turn of the loop the server knows whether the frame was written. If it was not, sending
                # an empty body waits for that, so that a slow reader is noticed here.
                await asyncio.sleep(0)
                await self._put({"type": "http.response.body", "body": b"", "more_body": True})
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError as fault:  # includes TimeoutError
            if isinstance(fault, TimeoutError):
                logger().warning("slow_caller", request_id=self._request_id, frames_waiting=len(self._waiting))
            self.given_up = True
            self._hang_up()

    async def _next(self) -> tuple[str, bytes]:
        """The next frame; a comment if there is none for `server.sse_comment_seconds`."""
        if not self._waiting:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._settings.sse_comment_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return "", sse.COMMENT
        return self._waiting.pop(0)

    async def _put(self, event: MutableMapping[str, Any]) -> None:
        """Pass one event to the server. Raises TimeoutError if the caller does not read in time."""
        self._sending = True
        async with asyncio.timeout(self._settings.send_timeout_seconds):
            await self._send(event)
        self._sending = False

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would otherwise buffer the stream
            (b"x-request-id", self._request_id.encode()),
        ]

    def __repr__(self) -> str:
        state = "not opened" if self._writer is None else "ended" if self._writer.done() else "open"
        return f"<EventStream {self._request_id} {state}, {len(self._waiting)} frames waiting>"


def progress_message(progress: Mapping[str, Any]) -> bytes:
    """The JSON-RPC notification of a progress (RCP §9)."""
    try:
        return envelope.encode_notification(PROGRESS, progress)
    except TypeError:
        # A hit is nested too deeply to be encoded. The response cuts such a hit off, the progress omits all hits.
        bare = {key: value for key, value in progress.items() if key != "partial"}
        return envelope.encode_notification(PROGRESS, bare)
