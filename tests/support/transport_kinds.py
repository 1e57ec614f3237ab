"""The kinds of transport that one suite runs over, and how each meets an engine with a given behaviour.

A behaviour is a name, so that an engine in another process can be told it on its command line as well. Another kind of
wire joins the suite by appending to KINDS a class with the same two methods.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

from app.engines.http.client import HttpTransport
from app.engines.http.http2_client import Http2Transport
from app.engines.transport import Transport
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.authority import Authority
from tests.support.http2_peer import Http2Peer, PeerStream
from tests.support.raw_peer import Line, RawPeer, Script, http_answer, rpc_answer, rpc_error

Behaviour = Literal[
    "echo", "error", "rate limit", "wrong id", "id as text", "garbage", "no object", "no result", "empty", "huge",
    "silent first", "dies", "slow first",
]  # fmt: skip


class Kind(Protocol):
    """One kind of transport."""

    name: str

    def meet(self, behaviour: Behaviour, **settings: Any) -> AbstractAsyncContextManager[Transport]:
        """A transport to an engine with that behaviour; both are gone afterwards."""
        ...


class HttpKind:
    """RCP over HTTP by one of the clients."""

    def __init__(self, name: str, client: Callable[..., Transport]) -> None:
        self.name = name
        self.client = client

    def to(self, url: str, settings: dict[str, Any] | None = None, *, tuned: Any = None, **entry: Any) -> Transport:
        """A transport to `url`; `tuned` are keyword arguments of the client itself."""
        return self.client(EngineEntry(id="docs", url=url, **entry), EnginesSettings(**(settings or {})), **tuned or {})

    @asynccontextmanager
    async def meet(self, behaviour: Behaviour, **settings: Any) -> AsyncIterator[Transport]:
        async with RawPeer(script_of(behaviour)) as peer:
            transport = self.to(peer.url, settings)
            try:
                yield transport
            finally:
                await transport.close()


class Http2Kind:
    """RCP over HTTP/2."""

    name = "http2"

    @asynccontextmanager
    async def meet(self, behaviour: Behaviour, **settings: Any) -> AsyncIterator[Transport]:
        async def script(stream: PeerStream) -> None:
            first = len(stream.connection.peer.requests) == 1
            if behaviour in ("silent first", "slow first") and first:
                await asyncio.Event().wait()
            elif behaviour == "dies":
                stream.connection.hang_up()
            else:
                await stream.answer(_body(behaviour, stream.id, stream.message["params"]))

        with TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            async with Http2Peer(authority, script) as peer:
                entry = EngineEntry(id="docs", url=peer.url, client="httpx", tls=authority.trusted)
                transport = Http2Transport(entry, EnginesSettings(**settings))
                try:
                    yield transport
                finally:
                    await transport.close()


def script_of(behaviour: Behaviour) -> Script:
    """What a peer with that behaviour does on each connection."""

    async def script(line: Line) -> None:
        while request := await line.request():
            first = len(line.peer.requests) == 1
            if behaviour in ("silent first", "slow first") and first:
                await line.until_ended()
            elif behaviour == "dies":
                return
            else:
                line.send(http_answer(_body(behaviour, request.id, request.message["params"])))

    return script


def _body(behaviour: Behaviour, request_id: int, params: Any) -> Any:
    """What an engine with that behaviour answers, as an object or as bytes."""
    return {
        "error": rpc_error(request_id, -32602, "k must be positive", field="k"),
        "rate limit": rpc_error(request_id, -32011, "slow down", retryAfterMs=1500),
        "wrong id": rpc_answer(request_id + 1, params),
        "id as text": rpc_answer(str(request_id), params),
        "garbage": b"<html>not JSON</html>",
        "no object": b"[1, 2]",
        "no result": {"jsonrpc": "2.0", "id": request_id},
        "empty": b"",
        "huge": rpc_answer(request_id, {"text": "x" * 200_000}),
    }.get(behaviour, rpc_answer(request_id, params))


Listen = Callable[..., Awaitable[RawPeer]]
"""Fixture: start a raw peer with a script."""
Reach = Callable[..., Transport]
"""Fixture: a transport to a raw peer or URL, closed at the end."""

HTTP_KINDS = (HttpKind("http", HttpTransport), HttpKind("no http2", Http2Transport))
KINDS: tuple[Kind, ...] = (*HTTP_KINDS, Http2Kind())
