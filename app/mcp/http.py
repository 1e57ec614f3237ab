"""POST /mcp (MCP's streamable HTTP): host check, authentication, admission and limits, then the MCP server.

An answer is plain JSON, or an event stream if the client wants progress. A client that disconnects cancels its request.
"""

import asyncio
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, Final

from starlette.routing import Route

from app.api.allowed_hosts import McpHostPolicy
from app.api.auth.authentication import Authenticator
from app.api.auth.client_address import ClientAddress
from app.api.auth.principal import AuthError, Principal
from app.api.auth.protected_resource import ProtectedResource
from app.api.caller import Caller, arrival_of
from app.api.disconnects import ClientDisconnected, DisconnectWatcher, close_connection, unless_disconnected
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.http_requests import (
    CHALLENGE,
    COMPRESSED,
    REVOKED,
    SHUTDOWN_ERROR_SECONDS,
    SHUTTING_DOWN,
    read_whole_body,
)
from app.api.responses import CLOSE, RETRY_AFTER, Receive, Scope, not_found, send_answer, send_at_once
from app.api.rpc_path import MCP_METADATA, MCP_PATH, MCP_PATHS
from app.api.streaming import EventStream, Send
from app.mcp import messages
from app.mcp.messages import McpError, McpMessage, read_message
from app.mcp.request_headers import SESSION_HEADER, McpRequest, check_mirrored, version_of
from app.mcp.server import McpAnswer, McpServer
from app.mcp.tools import Tools
from app.protocol import envelope, sse
from app.protocol.errors import InvalidRequest, PayloadTooLarge, RateLimited, RcpError
from app.settings.schema import GatewaySettings
from app.telemetry.logs import logger

READING: Final = {"id": 0, "method": "retrieve"}
"""The RCP request as which a tool call counts for roles and limits."""

COUNTED: Final = ("tools/call", "resources/read")
"""Methods that count against limits. A client sends several others before it calls a tool, and they do no work."""

STATUSES: Final = {
    messages.PARSE_ERROR: 400,
    messages.INVALID_REQUEST: 400,
    messages.INVALID_PARAMS: 400,
    messages.HEADER_MISMATCH: 400,
    messages.EXTENSION_NEEDED: 400,
    messages.VERSION_UNSUPPORTED: 400,
    messages.METHOD_NOT_FOUND: 404,
}
"""HTTP statuses of errors in 2026-07-28. In earlier revisions the error of a request has status 200."""

NO_STREAM = InvalidRequest("send MCP messages with POST; there are no sessions and no stream of server messages")
NOT_JSON = InvalidRequest("the Content-Type must be application/json")
NOT_ACCEPTED = InvalidRequest("responses are application/json or text/event-stream, but Accept allows neither")


class McpEndpoint:
    """The MCP endpoint of one gateway: a plain ASGI application."""

    def __init__(self, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._dispatcher = dispatcher
        self._authenticator = state.authenticator
        self._state = state
        # Callers without credential are distinguished by address: what feedback of one caller can change is limited.
        self._client_address = ClientAddress(state.settings.server.trusted_proxies)
        tools = Tools(dispatcher, state)
        self._server = McpServer(tools, state.metrics.mcp, state.settings.server.name, state.version)
        self._request_ids = map(f"mcp-{token_hex(6)}-{{:x}}".format, count(1))
        self._renew(state.settings)

    def _renew(self, settings: GatewaySettings) -> None:
        """Apply changed settings to the next requests."""
        self._settings = settings
        gateway = settings.server
        self._hosts = McpHostPolicy(settings.mcp, gateway.public_url, gateway.allowed_hosts, gateway.cors_origins)
        self._resource = ProtectedResource(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A reload replaces the settings object, so comparing identity is enough.
        if self._state.settings is not self._settings:
            self._renew(self._state.settings)
        request = McpRequest(scope, receive, send, next(self._request_ids))
        if scope["path"] == MCP_METADATA:
            await self._send_metadata(request)
            return
        try:
            await self._serve(request)
        except AuthError as error:
            await self._refuse_caller(error, request)
        except ClientDisconnected:
            await close_connection(scope, receive)
        except asyncio.CancelledError:
            # The server ends: a client that still waits gets an error instead of a broken connection.
            with suppress(Exception):
                async with asyncio.timeout(SHUTDOWN_ERROR_SECONDS):
                    await self._refuse_caller(AuthError(503, SHUTTING_DOWN), request)
            if not self._state.readiness.draining:
                raise
        finally:
            if request.stream is not None:
                await request.stream.end()

    async def _serve(self, request: McpRequest) -> None:
        """Answer one request. Raises AuthError if it is refused before its message is read."""
        self._check_head(request)
        if self._authenticator is None:
            request.caller = Caller(
                request.request_id,
                session=request.session,
                address=self._client_address.address(request.scope),
                since=arrival_of(request.scope),
                trace=request.trace,
                sent_id=request.sent_id,
            )
            await self._answer(request, None)
        else:
            await self._serve_authenticated(self._authenticator, request)
        if request.stream is not None and request.stream.given_up:
            raise ClientDisconnected

    def _check_head(self, request: McpRequest) -> None:
        """Raises AuthError if the headers alone are a reason to refuse."""
        scope = request.scope
        refusal = self._hosts.refusal(scope["headers"])
        if scope["method"] != "POST":
            # Clients before 2026-07-28 try whether there is a stream to listen to, so this is not logged.
            raise AuthError(405, NO_STREAM, (b"allow", b"POST"), quiet=True)
        if refusal is not None:
            raise AuthError(*refusal)
        # A compressed body could be small on the wire and huge in memory.
        for name, value in scope["headers"]:
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise AuthError(415, COMPRESSED)
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise AuthError(415, COMPRESSED)
        # A web page can send other types without asking first (CORS), so they must not be read as JSON.
        if request.content_type.partition(b";")[0].strip().lower() != b"application/json":
            raise AuthError(415, NOT_JSON)
        if request.events_only and not sse.accepted(request.accept):
            raise AuthError(406, NOT_ACCEPTED)

    async def _serve_authenticated(self, authenticator: Authenticator, request: McpRequest) -> None:
        """Serve an authenticated caller, for as long as its credential is valid. Raises AuthError."""
        principal = await authenticator.identify(request.scope)
        # For every method: no tool works without this role, and a client should learn that when it connects.
        authenticator.check_role(principal, READING)
        running = authenticator.enter(principal)
        request.caller = Caller(
            request.request_id,
            session=request.session,
            address=principal.owner.address,
            tenant=principal.tenant,
            key_id=principal.key_id,
            since=arrival_of(request.scope),
            trace=request.trace,
            sent_id=request.sent_id,
        )
        try:
            await self._answer(request, principal)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            raise AuthError(401, REVOKED, CHALLENGE) from None
        finally:
            authenticator.leave(principal, running)

    async def _answer(self, request: McpRequest, principal: Principal | None) -> None:
        """Read the body, answer its message or batch, and send the response. Raises AuthError."""
        # Before admission: a client that sends slowly must not hold a place meanwhile.
        body = await read_whole_body(request.receive, self._settings.server.max_body_bytes)
        if body is None:
            limit = self._settings.server.max_body_bytes
            raise AuthError(413, PayloadTooLarge(f"a request may be at most {limit} bytes long", field="body"), CLOSE)
        admission = self._state.admission
        if not admission.try_enter():
            try:
                await admission.enter()
            except RateLimited as fault:
                raise AuthError(503, fault, RETRY_AFTER) from None
        places = 1
        try:
            message = envelope.read_body(body)
            if type(message) is list:
                members = self._batch(request, message)
                admission.widen(len(members) - 1)
                places = len(members)
                await self._spend(principal, members)
                status, answer, lines = await self._answer_batch(request, members)
            else:
                status, answer, lines = await self._answer_one(request, message, principal)
        except McpError as fault:
            status, answer, lines = 400, fault.body(request.message_id), []
            line = {"request_id": request.request_id, "status": status, "code": fault.code}
            logger().info("refused", **line, detail=fault.message)
        except RcpError as fault:
            status = 413 if isinstance(fault, PayloadTooLarge) else 400
            answer = self._dispatcher.refused(fault, request.request_id, status, request.message_id)
            lines = []
        finally:
            # Released before the response is sent: a slow reader must not occupy a place.
            admission.leave(places)
        # Logged after sending, and even if that fails.
        try:
            await self._send(request, status, answer)
        finally:
            for line in lines:
                logger().info("mcp", **line, bytes=len(answer or b""))

    async def _spend(self, principal: Principal | None, members: list[Any]) -> None:
        """Count the messages that cause calls to engines against the caller's limits. Raises AuthError."""
        calls = [READING for each in members if type(each) is dict and each.get("method") in COUNTED]
        if principal is not None and self._authenticator is not None and calls:
            await self._authenticator.spend(principal, calls if len(calls) > 1 else READING)

    async def _answer_one(
        self, request: McpRequest, message: Any, principal: Principal | None
    ) -> tuple[int, bytes | None, list[Any]]:
        """(HTTP status, body, log lines). Raises McpError for a malformed message, AuthError at a limit."""
        # Before anything can fail, so that every error carries the id.
        request.message_id = messages.id_of(message)
        version = version_of(request, message)
        read = read_message(message, version)
        if read.modern:
            check_mirrored(request.scope["headers"], read)
            request.caller = request.caller._replace(session=None)  # since 2026-07-28 there are no sessions
        await self._spend(principal, [message])
        if read.method == "initialize" and not read.modern:
            # The id of a session is only a name within which requests can be cancelled. It is stored nowhere, so that
            # every replica accepts it.
            request.session = token_hex(16)
        else:
            request.session = None
        answer = await self._work(request, read)
        status = 202 if answer.body is None else STATUSES.get(answer.code or 0, 200) if read.modern else 200
        return status, answer.body, [] if answer.line is None else [answer.line]

    async def _work(self, request: McpRequest, message: McpMessage) -> McpAnswer:
        """The answer to one message. Progress is sent meanwhile if the client requests it and accepts events."""
        watch = DisconnectWatcher(request.receive)
        notify = None
        if message.meta.get("progressToken") is not None and sse.accepted(request.accept):
            stream = request.stream = EventStream(
                request.send, request.request_id, self._settings.server, watch.disconnect
            )

            def notify(notification: bytes) -> None:
                # Opened by the first notification: a faster call gets a plain response with a length.
                stream.open()
                stream.notify(notification)

        return await unless_disconnected(self._server.answer(message, request.caller, notify), watch)

    def _batch(self, request: McpRequest, members: list[Any]) -> list[Any]:
        """The members of a batch. Raises McpError if it cannot be answered."""
        if (request.version or messages.ASSUMED) != messages.BATCHES:
            text = f"batches exist in revision {messages.BATCHES} only: send each message in a separate request"
            raise McpError(messages.INVALID_REQUEST, text)
        most = self._settings.server.max_batch
        if not 0 < len(members) <= most:
            raise McpError(messages.INVALID_REQUEST, f"a batch contains 1 to {most} messages")
        return members

    async def _answer_batch(self, request: McpRequest, members: list[Any]) -> tuple[int, bytes | None, list[Any]]:
        """(HTTP status, body, log lines) of a batch, whose members run concurrently."""

        async def answered(member: Any) -> McpAnswer:
            try:
                read = read_message(member, messages.BATCHES)
                if read.method == "initialize":
                    raise McpError(messages.INVALID_REQUEST, "'initialize' cannot be part of a batch")
            except McpError as fault:
                return McpAnswer(fault.body(messages.id_of(member)))
            return await self._server.answer(read, request.caller)

        request.session = None

        async def all_answered() -> list[McpAnswer]:
            return await asyncio.gather(*map(answered, members))

        answers = await unless_disconnected(all_answered(), DisconnectWatcher(request.receive))
        bodies = [answer.body for answer in answers if answer.body is not None]
        lines = [answer.line for answer in answers if answer.line is not None]
        return (200, b"[" + b",".join(bodies) + b"]", lines) if bodies else (202, None, lines)

    async def _send(self, request: McpRequest, status: int, body: bytes | None, *headers: tuple[bytes, bytes]) -> None:
        """Send a response: as the last event of a stream that has begun, else complete."""
        if request.stream is not None and request.stream.opened and body is not None:
            await request.stream.finish(body)
            return
        if request.session is not None and status == 200:
            headers = (*headers, (SESSION_HEADER, request.session.encode("latin-1")))
        request.begun = True
        name = (b"x-request-id", request.request_id.encode())
        if body is None:
            head = [name, (b"content-length", b"0")]
            await request.send({"type": "http.response.start", "status": status, "headers": head})
            await request.send({"type": "http.response.body", "body": b""})
        elif request.events_only and status == 200:
            head = [name, (b"content-type", sse.MEDIA_TYPE.encode()), *headers]
            await request.send({"type": "http.response.start", "status": 200, "headers": head})
            await request.send({"type": "http.response.body", "body": sse.frame(body)})
        elif status != 200 or headers or not send_at_once(request.scope, body, request.request_id):
            await send_answer(request.send, status, body, request.request_id, *headers)

    async def _refuse_caller(self, error: AuthError, request: McpRequest) -> None:
        """Send the response for a refused request; as the last event if its stream has begun."""
        if request.begun:
            return  # HTTP has no way to replace an answer that is being sent
        body = self._dispatcher.refused_caller(error, request.request_id, request.message_id)
        headers = [*error.headers]
        if error.status == 403 and error.principal is not None and self._resource.advertised:
            headers.append((b"www-authenticate", b'Bearer error="insufficient_scope"'))
        shown = [
            (name, self._resource.challenge(request.scope, value) if name == b"www-authenticate" else value)
            for name, value in headers
        ]
        if error.quiet and error.status != 405:
            shown.append(CLOSE)
        request.session = None
        await self._send(request, error.status, body, *shown)

    async def _send_metadata(self, request: McpRequest) -> None:
        """Send the OAuth metadata, which needs no authentication (RFC 9728 §3)."""
        scope = request.scope
        if not self._resource.advertised:
            await not_found(scope, request.receive, request.send)
            return
        refusal = self._hosts.refusal(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            fault = InvalidRequest("this document is read with GET")
            await self._refuse_caller(AuthError(405, fault, (b"allow", b"GET")), request)
        elif refusal is not None:
            await self._refuse_caller(AuthError(*refusal), request)
        else:
            body = self._resource.metadata(scope)
            # Private: the address in it depends on headers of the request.
            head = [
                (b"x-request-id", request.request_id.encode()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"cache-control", b"private, max-age=300"),
            ]
            await request.send({"type": "http.response.start", "status": 200, "headers": head})
            await request.send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def __repr__(self) -> str:
        return f"<McpEndpoint {MCP_PATH}, {self._server!r}, {self._hosts!r}>"


def mcp_routes(endpoint: McpEndpoint) -> list[Route]:
    """The routes of MCP and of its OAuth metadata."""
    paths = (*MCP_PATHS, MCP_METADATA)
    return [Route(path, endpoint, name=f"mcp {path}", include_in_schema=False) for path in paths]
