"""POST /mcp: host, credential and budget first, then the SDK's session manager. Raw ASGI on the exact path.

It decides who gets as far as MCP, and that a caller that hangs up, is revoked or does not read ends what it began. It
refuses to know MCP's messages; other paths are left to the application behind.
"""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from secrets import token_hex
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from sse_starlette.sse import AppStatus

from app.api.auth.authentication import Authenticator
from app.api.auth.principal import AuthError
from app.api.caller import Caller, arrival_of
from app.api.disconnects import part
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.responses import CLOSE, RETRY_AFTER, Asgi, Receive, Scope
from app.api.rpc import COMPRESSED, ENDING, LAST_WORDS_SECONDS, REVOKED
from app.api.streaming import Send
from app.mcp.host_check import McpHostPolicy
from app.mcp.http_exchange import McpHttpExchange
from app.mcp.protected_resource import METADATA, PATH, ProtectedResource
from app.mcp.server import CALLER, EXCHANGE, PLACE, AdmissionSlot, McpServer
from app.mcp.tools import Tools
from app.protocol import envelope
from app.protocol.errors import BackendUnavailable, InvalidParams, InvalidRequest, RateLimited, RcpError
from app.settings.schema import GatewaySettings

READING = {"id": 0, "method": "retrieve"}
"""What the guard is told each message of this door amounts to: whoever may not read has no business here."""

NO_STREAM = envelope.failure(
    None, InvalidRequest("MCP is spoken with POST here; there are no sessions and no stream to listen to")
)
CODINGS = {b"content-encoding": (b"", b"identity"), b"transfer-encoding": (b"chunked",)}
"""Headers that say how a body is coded, and what they may say of one that is as it was written."""

SHUTTING_DOWN = BackendUnavailable(ENDING, retryable=True)

# A stream ends with its request, which has a deadline; without this sse-starlette breaks all off at SIGTERM.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


async def _read_ahead(receive: Receive, most: int) -> tuple[bytes, Receive]:
    """The body, as far as it is there and not longer than `most`, and what gives the same events once more."""
    events: list[MutableMapping[str, Any]] = []
    size = 0
    while not events or (events[-1]["type"] == "http.request" and events[-1].get("more_body") and size <= most):
        events.append(await receive())
        size += len(events[-1].get("body", b""))
    body = b"".join([event.get("body", b"") for event in events])
    events.reverse()

    async def again() -> MutableMapping[str, Any]:
        return events.pop() if events else await receive()

    return body, again


def _unreadable(body: bytes) -> bytes | None:
    """The error for params that hold half of a surrogate pair, which the SDK takes for no JSON; else None."""
    if b"\\ud" not in body.lower():
        return None
    try:
        message = envelope.read_body(body)
    except RcpError:
        return None
    if type(message) is not dict or "id" not in message:
        return None
    try:
        envelope.check_params(message.get("params"))
    except InvalidParams as fault:
        return envelope.failure(envelope.recover_id(message), fault)
    return None


class McpEndpoint:
    """The MCP endpoint in front of `app`."""

    def __init__(self, app: Asgi, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._guard = state.guard
        self._state = state
        toolbox = Tools(dispatcher, state)
        self._server = McpServer(toolbox, state.metrics.mcp, state.settings.server.name, state.version)
        self._manager = StreamableHTTPSessionManager(self._server.sdk, json_response=False, stateless=True)
        self._renew(state.settings)
        self._request_ids = map(f"mcp-{token_hex(6)}-{{:x}}".format, count(1))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Around the life of the application; a door runs once."""
        async with self._manager.run():
            yield

    def _renew(self, settings: GatewaySettings) -> None:
        """What the door does itself, and has the SDK do, is as these settings say from now on."""
        self._settings = settings
        server = settings.server
        self._hosts = McpHostPolicy(settings.mcp, server.public_url, server.allowed_hosts, server.cors_origins)
        self._resource = ProtectedResource(settings)
        self._manager.security_settings = TransportSecuritySettings(
            allowed_hosts=list(self._hosts.hosts), allowed_origins=list(self._hosts.origins)
        )
        self._manager.asgi_app.max_body_size = server.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path") if scope["type"] == "http" else None
        if path not in (PATH, METADATA):
            await self._app(scope, receive, send)
            return
        if self._state.settings is not self._settings:
            self._renew(self._state.settings)
        exchange = McpHttpExchange(scope, send, self._settings.server.send_timeout_seconds, self._request_ids.__next__)
        if path == METADATA:
            await (self._tell_resource(exchange) if self._resource.advertised else self._app(scope, receive, send))
            return
        try:
            with exchange:
                await self._serve(exchange, receive)
        finally:
            exchange.tell()
        if exchange.broken_off:
            await part(scope, receive)

    async def _serve(self, exchange: McpHttpExchange, receive: Receive) -> None:
        scope = exchange.scope
        try:
            if scope["method"] != "POST":
                # Clients before 2026-07-28 try each time whether there is a stream to listen to: not worth a line.
                await exchange.answer(405, NO_STREAM, (b"allow", b"POST"))
                return
            refusal = self._hosts.refusal(scope["headers"])
            if refusal is not None:
                raise AuthError(*refusal)
            if any(name in CODINGS and value.lower() not in CODINGS[name] for name, value in scope["headers"]):
                raise AuthError(415, COMPRESSED)
            if self._guard is None:
                await self._admit(
                    exchange,
                    Caller(exchange.request_id, exchange.session, since=arrival_of(scope), sent_id=exchange.sent_id),
                    receive,
                )
            else:
                await self._serve_known(self._guard, exchange, receive)
        except AuthError as away:
            await self._turn_away(away, exchange)
        except asyncio.CancelledError:
            if exchange.given_up:
                raise
            with suppress(Exception):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._turn_away(AuthError(503, SHUTTING_DOWN), exchange)
            if not self._state.readiness.draining:
                raise

    async def _serve_known(self, guard: Authenticator, exchange: McpHttpExchange, receive: Receive) -> None:
        """Serve whom the guard lets in, for as long as its credential is good. Raises TurnedAway."""
        principal = await guard.identify(exchange.scope)
        running = guard.enter(principal)
        session, address = exchange.session, principal.owner.address
        caller = Caller(
            exchange.request_id,
            session,
            None,
            address,
            principal.tenant,
            principal.key_id,
            arrival_of(exchange.scope),
            sent_id=exchange.sent_id,
        )
        try:
            await guard.spend(principal, READING)
            await self._admit(exchange, caller, receive)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            raise AuthError(401, REVOKED, (b"www-authenticate", b'Bearer error="invalid_token"')) from None
        finally:
            guard.leave(principal, running)

    async def _admit(self, exchange: McpHttpExchange, caller: Caller, receive: Receive) -> None:
        """Take the request on, as soon as there is room; its place is free when its message is answered."""
        admission = self._state.admission
        if not admission.try_enter():
            try:
                await admission.enter()
            except RateLimited as fault:
                raise AuthError(503, fault, RETRY_AFTER) from None
        place = AdmissionSlot(admission.leave)
        headers = self._hosts.lowered(exchange.scope["headers"])
        scope = {**exchange.scope, "headers": headers, CALLER: caller, PLACE: place, EXCHANGE: exchange}
        try:
            body, receive = await _read_ahead(receive, self._settings.server.max_body_bytes)
            refusal = _unreadable(body)
            if refusal is None:
                await self._manager.handle_request(scope, receive, exchange.send)
            else:
                await exchange.answer(200, refusal)
        finally:
            place.leave()

    async def _turn_away(self, away: AuthError, exchange: McpHttpExchange) -> None:
        """Answer somebody who gets no further; one whose stream has begun is told in its last message."""
        body = self._dispatcher.turned_away(away, exchange.request_id, exchange.message_id)
        headers = [*away.headers]
        if away.status == 403 and away.principal is not None and self._resource.advertised:
            headers.append((b"www-authenticate", b'Bearer error="insufficient_scope"'))
        told = [
            (name, self._resource.challenge(exchange.scope, value) if name == b"www-authenticate" else value)
            for name, value in headers
        ]
        if away.quiet:
            told.append(CLOSE)
        await exchange.answer(away.status, body, *told)

    async def _tell_resource(self, exchange: McpHttpExchange) -> None:
        """RFC 9728 §3: anybody may read it."""
        if exchange.scope["method"] not in ("GET", "HEAD"):
            fault = InvalidRequest("this document is read with GET")
            await self._turn_away(AuthError(405, fault, (b"allow", b"GET")), exchange)
            return
        refusal = self._hosts.refusal(exchange.scope["headers"])
        if refusal is not None:
            await self._turn_away(AuthError(*refusal), exchange)
            return
        await exchange.answer(200, self._resource.metadata(exchange.scope), (b"cache-control", b"max-age=300"))

    def __repr__(self) -> str:
        return f"<McpEndpoint {PATH}, {self._server!r}, {self._hosts!r}>"
