"""POST /mcp: host, credential and budget first, then the SDK's session manager. Raw ASGI on the exact path.

It decides who gets as far as MCP, and that a caller that hangs up, is revoked or does not read ends what it began. It
refuses to know MCP's messages; other paths are left to the application behind.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from secrets import token_hex

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from sse_starlette.sse import AppStatus

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.mcp.exchange import Exchange
from app.api.mcp.hosts import Hosts
from app.api.mcp.resource import METADATA, PATH, ProtectedResource
from app.api.mcp.server import CALLER, McpServer
from app.api.mcp.toolbox import Toolbox
from app.api.rpc import Asgi, Receive, Scope
from app.api.state import GatewayState
from app.api.stream import Send
from app.api.visit import TurnedAway
from app.protocol import envelope
from app.protocol.errors import BackendUnavailable, InvalidRequest, Unauthorized

READING = {"id": 0, "method": "retrieve"}
"""What the guard is told each message of this door amounts to: whoever may not read has no business here."""

REVOKED = Unauthorized("the credential is no longer valid")
NO_STREAM = envelope.failure(
    None, InvalidRequest("MCP is spoken with POST here; there are no sessions and no stream to listen to")
)
SHUTTING_DOWN = BackendUnavailable("the gateway is shutting down", retryable=True)

# A stream ends with its request, which has a deadline; without this sse-starlette breaks all off at SIGTERM.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class McpDoor:
    """The MCP endpoint in front of `app`."""

    def __init__(self, app: Asgi, dispatcher: Dispatcher, state: GatewayState) -> None:
        settings = state.settings
        self._app = app
        self._dispatcher = dispatcher
        self._guard = state.guard
        self._send_timeout = settings.server.send_timeout_seconds
        self._hosts = Hosts(settings.mcp, settings.server.public_url)
        self._resource = ProtectedResource(settings)
        toolbox = Toolbox(dispatcher, state.recent, settings.mcp)
        self._server = McpServer(toolbox, state.metrics.mcp, settings.server.name, state.version)
        self._manager = StreamableHTTPSessionManager(
            self._server.sdk,
            json_response=False,
            stateless=True,
            security_settings=TransportSecuritySettings(
                allowed_hosts=list(self._hosts.hosts), allowed_origins=list(self._hosts.origins)
            ),
            max_request_body_size=settings.server.max_body_bytes,
        )
        self._request_ids = map(f"mcp-{token_hex(6)}-{{:x}}".format, count(1))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Around the life of the application; a door runs once."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path == PATH and scope["type"] == "http":
            exchange = Exchange(scope, send, self._send_timeout, self._request_ids.__next__)
            with exchange:
                await self._serve(exchange, receive)
        elif path == METADATA and scope["type"] == "http" and self._resource.advertised:
            exchange = Exchange(scope, send, self._send_timeout, self._request_ids.__next__)
            await self._tell_resource(exchange)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, exchange: Exchange, receive: Receive) -> None:
        scope = exchange.scope
        try:
            if scope["method"] != "POST":
                # Clients before 2026-07-28 try each time whether there is a stream to listen to: not worth a line.
                await exchange.answer(405, NO_STREAM, (b"allow", b"POST"))
                return
            refusal = self._hosts.refusal(scope["headers"])
            if refusal is not None:
                raise TurnedAway(*refusal)
            if self._guard is None:
                await self._admit(exchange, Caller(exchange.request_id, exchange.session), receive)
            else:
                await self._serve_known(exchange, receive)
        except TurnedAway as away:
            await self._turn_away(away, exchange)
        except asyncio.CancelledError:
            if not exchange.given_up:
                with suppress(Exception):
                    await self._turn_away(TurnedAway(503, SHUTTING_DOWN), exchange)
            raise

    async def _serve_known(self, exchange: Exchange, receive: Receive) -> None:
        """Serve whom the guard lets in, for as long as its credential is good. Raises TurnedAway."""
        guard = self._guard
        assert guard is not None
        visit = await guard.identify(exchange.scope)
        running = guard.enter(visit)
        caller = Caller(exchange.request_id, tenant=visit.tenant, key_id=visit.key_id, address=visit.owner.address)
        try:
            await guard.spend(visit, READING)
            await self._admit(exchange, caller, receive)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            raise TurnedAway(401, REVOKED, (b"www-authenticate", b'Bearer error="invalid_token"')) from None
        finally:
            guard.leave(visit, running)

    async def _admit(self, exchange: Exchange, caller: Caller, receive: Receive) -> None:
        headers = self._hosts.lowered(exchange.scope["headers"])
        scope = {**exchange.scope, "headers": headers, CALLER: caller}
        await self._manager.handle_request(scope, receive, exchange.send)

    async def _turn_away(self, away: TurnedAway, exchange: Exchange) -> None:
        """Answer somebody who gets no further; nothing can be said to one whose answer has begun."""
        body = self._dispatcher.turned_away(away, exchange.request_id, None)
        headers = [*away.headers]
        if away.status == 403 and away.visit is not None and self._resource.advertised:
            headers.append((b"www-authenticate", b'Bearer error="insufficient_scope"'))
        told = [
            (name, self._resource.challenge(exchange.scope, value) if name == b"www-authenticate" else value)
            for name, value in headers
        ]
        if away.quiet:
            told.append((b"connection", b"close"))
        await exchange.answer(away.status, body, *told)

    async def _tell_resource(self, exchange: Exchange) -> None:
        """RFC 9728 §3: anybody may read it."""
        if exchange.scope["method"] not in ("GET", "HEAD"):
            fault = InvalidRequest("this document is read with GET")
            await self._turn_away(TurnedAway(405, fault, (b"allow", b"GET")), exchange)
            return
        refusal = self._hosts.refusal(exchange.scope["headers"])
        if refusal is not None:
            await self._turn_away(TurnedAway(*refusal), exchange)
            return
        await exchange.answer(200, self._resource.metadata(exchange.scope), (b"cache-control", b"max-age=300"))

    def __repr__(self) -> str:
        return f"<McpDoor {PATH}, {self._server!r}, {self._hosts!r}>"
