"""A scripted HTTP/2 server over TLS, built on `h2`: the counterpart of RawPeer for engines that speak HTTP/2.

    async def script(stream: PeerStream) -> None:
        await stream.answer(rpc_answer(stream.id, {}))

    async with Http2Peer(authority, script) as peer: ...  # peer.url, peer.requests, peer.connections

The script runs once per request. A script that hangs is cancelled when its stream is reset.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from tests.support.authority import Authority


class PeerStream:
    """One request, from the server's side."""

    def __init__(self, connection: "PeerConnection", number: int, headers: dict[str, str]) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.body = b""
        self.reset_by_client: int | None = None
        """The error code of the client's RST_STREAM."""

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def id(self) -> Any:
        return self.message["id"]

    async def answer(
        self, body: bytes | dict[str, Any], status: int = 200, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send a whole response, as fast as the client's windows allow."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head(status, [("content-length", str(len(content))), *headers])
        await self.data(content)

    def head(self, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.connection.h2.send_headers(self.number, [(":status", str(status)), *headers])
        self.connection.flush()

    async def data(self, content: bytes, *, end: bool = True) -> None:
        talk = self.connection.h2
        while content:
            room = min(talk.local_flow_control_window(self.number), talk.max_outbound_frame_size)
            if room <= 0:
                self.connection.room.clear()
                await self.connection.room.wait()
                continue
            piece, content = content[:room], content[room:]
            talk.send_data(self.number, piece)
            self.connection.flush()
            await asyncio.sleep(0)
        if end:
            talk.end_stream(self.number)
            self.connection.flush()

    def refuse(self, code: ErrorCodes = ErrorCodes.REFUSED_STREAM) -> None:
        """Reset the stream."""
        self.connection.h2.reset_stream(self.number, code)
        self.connection.flush()


Script = Callable[[PeerStream], Awaitable[None]]


class PeerConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, peer: "Http2Peer") -> None:
        self.peer = peer
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.streams: dict[int, PeerStream] = {}
        self.room = asyncio.Event()
        self.closed = False
        self.received = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peer.connections.append(self)
        if self.peer.max_streams is not None:
            limits = {SettingCodes.MAX_CONCURRENT_STREAMS: self.peer.max_streams}
            self.h2.local_settings = Settings(client=False, initial_values=limits)
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.peer.mute:
            return
        for event in self.h2.receive_data(data):
            self._on(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for task in tuple(self._tasks.values()):
            task.cancel()

    def go_away(self, last: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Announce the end of the connection and stay; h2 itself would not let the streams go on."""
        self.flush()
        frame = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + last.to_bytes(4, "big") + int(code).to_bytes(4, "big")
        self.transport.write(frame)

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data and not self.closed:
            self.transport.write(data)

    def hang_up(self) -> None:
        self.transport.abort()

    def _on(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            self.streams[event.stream_id] = PeerStream(self, event.stream_id, headers)
        elif isinstance(event, DataReceived):
            self.streams[event.stream_id].body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            stream = self.streams[event.stream_id]
            self.peer.requests.append(stream)
            self._tasks[event.stream_id] = asyncio.create_task(self._serve(stream))
        elif isinstance(event, StreamReset):
            self.streams[event.stream_id].reset_by_client = int(event.error_code)
            if task := self._tasks.get(event.stream_id):
                task.cancel()
        elif isinstance(event, WindowUpdated):
            self.room.set()

    async def _serve(self, stream: PeerStream) -> None:
        try:
            await self.peer.script(stream)
        except H2Error:  # the client has reset the stream in this very moment
            if stream.reset_by_client is None:
                raise
        except Exception as fault:  # noqa: BLE001 - kept for the test to fail with
            self.peer.faults.append(fault)
        finally:
            self._tasks.pop(stream.number, None)


class Http2Peer:
    """A listening socket on loopback; every request follows one script. `mute`: it reads, and reacts to nothing."""

    def __init__(
        self,
        authority: Authority,
        script: Script,
        *,
        max_streams: int | None = None,
        protocols: Iterable[str] = ("h2",),
    ) -> None:
        self.script = script
        self.max_streams = max_streams
        self.mute = False
        self.requests: list[PeerStream] = []
        self.connections: list[PeerConnection] = []
        self.faults: list[BaseException] = []
        self._tls = authority.server("localhost")
        self._tls.set_alpn_protocols(list(protocols))
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/rcp"

    @property
    def open_connections(self) -> int:
        return sum(not connection.closed for connection in self.connections)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: PeerConnection(self), "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for connection in self.connections:
            connection.hang_up()
        await self._server.wait_closed()
        if self.faults:
            raise self.faults[0]
