"""POST /mcp (MCP's streamable HTTP): host check, authentication, admission and limits, then the MCP server.

An answer is plain JSON, or an event stream if the client wants progress. A client that disconnects cancels its request.
"""

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
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
from app.api.disconnects import ClientDisconnected, DisconnectWatcher, close_connection, unless_hung_up
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.api.responses import CLOSE, RETRY_AFTER, Receive, Scope, not_found, send_answer, send_at_once
from app.api.rpc import (
    CHALLENGE,
    COMPRESSED,
    MAX_SESSION,
    REVOKED,
    SHUTDOWN_ERROR_SECONDS,
    SHUTDOWN_MESSAGE,
    read_whole_body,
    valid_request_id,
)
from app.api.rpc_path import MCP_METADATA, MCP_PATH, MCP_PATHS
from app.api.streaming import EventStream, Send
from app.mcp import server
from app.mcp.server import McpAnswer, McpError, McpMessage, McpServer, read_message
from app.mcp.tools import Tools
from app.protocol import envelope, sse
from app.protocol.errors import BackendUnavailable, InvalidRequest, PayloadTooLarge, RateLimited, RcpError
from app.settings.schema import GatewaySettings
from app.telemetry.logs import logger
from app.telemetry.tracing import read_trace

READING: Final = {"id": 0, "method": "retrieve"}
"""What a tool call counts as to roles and limits."""

COUNTED: Final = ("tools/call", "resources/read")
"""Methods that count against limits. A client sends several others before it calls a tool, and they do no work."""

VERSION, METHOD, NAME, SESSION = b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id"

STATUSES: Final = {
    server.PARSE_ERROR: 400,
    server.INVALID_REQUEST: 400,
    server.INVALID_PARAMS: 400,
    server.HEADER_MISMATCH: 400,
    server.EXTENSION_NEEDED: 400,
    server.VERSION_UNSUPPORTED: 400,
    server.METHOD_NOT_FOUND: 404,
}
"""HTTP statuses of errors in 2026-07-28. In earlier revisions the error of a request has status 200."""

NO_STREAM = InvalidRequest("MCP is spoken with POST here; there are no sessions and no stream to listen to")
NOT_JSON = InvalidRequest("the Content-Type must be application/json")
NOT_ACCEPTED = InvalidRequest("answers are application/json or text/event-stream, and Accept allows neither")
SHUTTING_DOWN = BackendUnavailable(SHUTDOWN_MESSAGE, retryable=True)


class McpRequest:
    """One HTTP request, as far as its headers go, and what has been learned of its message."""

    __slots__ = (
        "accept",
        "begun",
        "caller",
        "content_type",
        "headers",
        "message_id",
        "receive",
        "request_id",
        "scope",
        "send",
        "sent_id",
        "session",
        "stream",
        "trace",
        "version",
    )

    caller: Caller

    def __init__(self, scope: Scope, receive: Receive, send: Send, new_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.accept = b""
        self.begun = False  # whether a plain answer is being sent
        self.content_type = b""
        self.session: str | None = None
        self.version: str | None = None
        self.message_id: envelope.RequestId = None
        self.stream: EventStream | None = None
        parent = state = b""
        for name, value in scope["headers"]:
            if name == b"accept":
                self.accept = self.accept + b"," + value if self.accept else value
            elif name == b"content-type":
                self.content_type = value
            elif name == VERSION:
                self.version = value.decode("latin-1")
            elif name == SESSION and len(value) <= MAX_SESSION:
                self.session = value.decode("latin-1")
            elif name == b"traceparent":
                parent = value
            elif name == b"tracestate":
                state = state + b"," + value if state else value
        self.trace = read_trace(parent, state) if parent else None
        if scope.get("http_version") == "1.0":
            self.accept = b""  # it has no chunks, so a client could not tell the end of a stream from its breaking off
        self.sent_id = valid_request_id(scope["headers"])
        self.request_id = self.sent_id or new_id

    @property
    def events_only(self) -> bool:
        """Whether the client accepts an event stream and no JSON."""
        return bool(self.accept) and not sse.accepted(self.accept, sse.JSON_TYPES)


class McpEndpoint:
    """The MCP endpoint of one gateway: a plain ASGI application."""

    def __init__(self, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._dispatcher = dispatcher
        self._authenticator = state.authenticator
        self._state = state
        # What is learned from feedback of one caller is bounded, so callers without a credential are told apart, too.
        self._client_address = ClientAddress(state.settings.server.trusted_proxies)
        tools = Tools(dispatcher, state)
        self._server = McpServer(tools, state.metrics.mcp, state.settings.server.name, state.version)
        self._request_ids = map(f"mcp-{token_hex(6)}-{{:x}}".format, count(1))
        self._renew(state.settings)

    def _renew(self, settings: GatewaySettings) -> None:
        """Follow changed settings, from the next request on."""
        self._settings = settings
        gateway = settings.server
        self._hosts = McpHostPolicy(settings.mcp, gateway.public_url, gateway.allowed_hosts, gateway.cors_origins)
        self._resource = ProtectedResource(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A reload replaces the settings as a whole, so identity tells.
        if self._state.settings is not self._settings:
            self._renew(self._state.settings)
        request = McpRequest(scope, receive, send, next(self._request_ids))
        if scope["path"] == MCP_METADATA:
            await self._send_metadata(request)
            return
        try:
            await self._serve(request)
        except AuthError as away:
            await self._refuse_caller(away, request)
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
        """Answer one request. Raises AuthError for what is refused before it is a message."""
        self._check_head(request)
        if self._authenticator is None:
            request.caller = Caller(
                request.request_id,
                request.session,
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
        """Raises AuthError for what the headers alone rule out."""
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
        # For every method: without the role nothing here is of use, and a client finds out when it connects.
        authenticator.check_role(principal, READING)
        running = authenticator.enter(principal)
        request.caller = Caller(
            request.request_id,
            request.session,
            None,
            principal.owner.address,
            principal.tenant,
            principal.key_id,
            arrival_of(request.scope),
            request.trace,
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
            # The place is free before the client reads the answer, however slowly it does.
            admission.leave(places)
        try:
            await self._send(request, status, answer)
        finally:
            for line in lines:
                logger().info("mcp", **line, bytes=len(answer or b""))

    async def _spend(self, principal: Principal | None, messages: list[Any]) -> None:
        """Count those of these messages that ask engines against the caller's limits. Raises AuthError."""
        calls = [READING for each in messages if type(each) is dict and each.get("method") in COUNTED]
        if principal is not None and self._authenticator is not None and calls:
            await self._authenticator.spend(principal, calls if len(calls) > 1 else READING)

    async def _answer_one(
        self, request: McpRequest, message: Any, principal: Principal | None
    ) -> tuple[int, bytes | None, list[Any]]:
        """(HTTP status, body, log lines). Raises McpError for what is no message, AuthError."""
        # Before anything can fail, so that every error carries the id.
        request.message_id = server.id_of(message)
        version = _version_of(request, message)
        read = read_message(message, version)
        if read.modern:
            _check_headers(request.scope["headers"], read)
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
        """The answer to one message; its progress is sent meanwhile, if the client wants that and accepts events."""
        watch = DisconnectWatcher(request.receive)
        notify = None
        if message.meta.get("progressToken") is not None and sse.accepted(request.accept):
            stream = request.stream = EventStream(
                request.send, request.request_id, self._settings.server, watch.hang_up
            )

            def notify(notification: bytes) -> None:
                # Only now: a call that ends before its first notification stays a plain answer with a length.
                stream.open()
                stream.notify(notification)

        return await unless_hung_up(self._server.answer(message, request.caller, notify), watch)

    def _batch(self, request: McpRequest, messages: list[Any]) -> list[Any]:
        """The members of a batch. Raises McpError if it cannot be answered."""
        if (request.version or server.ASSUMED) != server.BATCHES:
            text = f"batches exist in revision {server.BATCHES} only: send each message in a request of its own"
            raise McpError(server.INVALID_REQUEST, text)
        most = self._settings.server.max_batch
        if not 0 < len(messages) <= most:
            raise McpError(server.INVALID_REQUEST, f"a batch contains 1 to {most} messages")
        return messages

    async def _answer_batch(self, request: McpRequest, members: list[Any]) -> tuple[int, bytes | None, list[Any]]:
        """The members run at the same time."""

        async def answered(member: Any) -> McpAnswer:
            try:
                read = read_message(member, server.BATCHES)
                if read.method == "initialize":
                    raise McpError(server.INVALID_REQUEST, "'initialize' cannot be part of a batch")
            except McpError as fault:
                return McpAnswer(fault.body(server.id_of(member)))
            return await self._server.answer(read, request.caller)

        request.session = None

        async def all_answered() -> list[McpAnswer]:
            return await asyncio.gather(*map(answered, members))

        answers = await unless_hung_up(all_answered(), DisconnectWatcher(request.receive))
        bodies = [answer.body for answer in answers if answer.body is not None]
        lines = [answer.line for answer in answers if answer.line is not None]
        return (200, b"[" + b",".join(bodies) + b"]", lines) if bodies else (202, None, lines)

    async def _send(self, request: McpRequest, status: int, body: bytes | None, *headers: tuple[bytes, bytes]) -> None:
        """Send an answer: as the last event of a stream that has begun, else as a whole."""
        if request.stream is not None and request.stream.opened and body is not None:
            await request.stream.finish(body)
            return
        if request.session is not None and status == 200:
            headers = (*headers, (SESSION, request.session.encode("latin-1")))
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

    async def _refuse_caller(self, away: AuthError, request: McpRequest) -> None:
        """Answer a request that is refused; if its stream has begun, with the last event."""
        if request.begun:
            return  # HTTP has no way to replace an answer that is being sent
        body = self._dispatcher.refused_caller(away, request.request_id, request.message_id)
        headers = [*away.headers]
        if away.status == 403 and away.principal is not None and self._resource.advertised:
            headers.append((b"www-authenticate", b'Bearer error="insufficient_scope"'))
        shown = [
            (name, self._resource.challenge(request.scope, value) if name == b"www-authenticate" else value)
            for name, value in headers
        ]
        if away.quiet and away.status != 405:
            shown.append(CLOSE)
        request.session = None
        await self._send(request, away.status, body, *shown)

    async def _send_metadata(self, request: McpRequest) -> None:
        """RFC 9728 §3: everybody may read it."""
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


def _version_of(request: McpRequest, message: Any) -> str:
    """The revision of a message. Raises McpError for one that is not spoken."""
    version = request.version
    if version == server.MODERN or server.is_modern(message):
        return server.MODERN
    if version is None:
        return server.ASSUMED
    if version not in server.HANDSHAKE:
        raise server.unsupported(version)
    return version


def _check_headers(headers: Iterable[tuple[bytes, bytes]], message: McpMessage) -> None:
    """Since 2026-07-28 headers mirror the message, so that proxies can route it. Raises McpError for a difference."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in (VERSION, METHOD, NAME):
            if name in found:
                raise McpError(server.HEADER_MISMATCH, f"the header {name.decode()} is given twice")
            found[name] = value.decode("latin-1").strip()
    if message.id is None or server.VERSION_KEY not in message.meta or server.CAPABILITIES_KEY not in message.meta:
        return  # a notification mirrors nothing; a request without these members is refused for that
    expected = {VERSION: message.meta[server.VERSION_KEY], METHOD: message.method}
    key = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}.get(message.method)
    if key is not None:
        expected[NAME] = message.params.get(key)
    for name, value in expected.items():
        if type(value) is str and _decoded(found.get(name)) != value:
            problem = "does not equal the message" if name in found else "is missing"
            raise McpError(server.HEADER_MISMATCH, f"the header {name.decode()} {problem}")


def _decoded(value: str | None) -> str | None:
    """A header's value; `=?base64?…?=` contains one that is no visible ASCII. None if that cannot be read."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    digits = value[len("=?base64?") : -len("?=")]
    try:
        decoded = b64decode(digits, validate=True)
        # Only the canonical spelling counts, as for proxies that compare the encoded form.
        return decoded.decode() if b64encode(decoded).decode() == digits else None
    except (Base64Error, UnicodeDecodeError):
        return None
