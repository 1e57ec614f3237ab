"""The RCP endpoint: `POST /rcp/{method}` and `POST /engines/{id}/rcp/{method}`, as a plain ASGI application.

It reads headers and body, authenticates, admits the request, and sends the response as JSON or as an event stream with
the HTTP status of RCP §5.2. The request of a caller that disconnects is cancelled.
"""

import asyncio
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple

from starlette.routing import Route

from app.api.auth.authentication import Authenticator
from app.api.auth.client_address import ClientAddress
from app.api.auth.principal import AuthError, Principal
from app.api.caller import Caller, arrival_of
from app.api.disconnects import ClientDisconnected, DisconnectWatcher, close_connection, unless_disconnected
from app.api.dispatch import BusyResponse, Dispatcher
from app.api.gateway_state import GatewayState
from app.api.http_requests import (
    CHALLENGE,
    COMPRESSED,
    MAX_SESSION,
    REVOKED,
    SHUTDOWN_ERROR_SECONDS,
    SHUTTING_DOWN,
    VALID_REQUEST_ID,
    read_whole_body,
)
from app.api.responses import CLOSE, RETRY_AFTER, Receive, Scope, not_found, send_answer, send_at_once
from app.api.rpc_path import BASE, ENGINES, RpcPath, parse_path
from app.api.running_requests import RunningRequest
from app.api.streaming import EventStream, Send
from app.protocol import envelope, sse
from app.protocol.errors import (
    GatewayBusy,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RcpError,
)
from app.telemetry.tracing import Trace, read_trace

STATUSES = {PayloadTooLarge: 413, GatewayBusy: 503}
"""HTTP statuses of errors that concern the whole body; others are 400."""

NO_JSON_RPC = "the body is not JSON-RPC: send an object with a 'method', or a list of such objects"

MAX_READ_AHEAD = 65_536
"""Longest body in bytes that is parsed for the message id if its caller is refused."""


class RpcHead(NamedTuple):
    """The headers that matter here. A named tuple, because one is created per request."""

    request_id: str
    encoding: str
    length: int
    accept: bytes
    session: str | None
    trace: Trace | None = None
    sent_id: str = ""
    """The request id that the caller sent, if it is valid."""


class AdmittedRequest(NamedTuple):
    """An authenticated request in flight."""

    authenticator: Authenticator
    principal: Principal
    running: RunningRequest


class _RpcRequest:
    """One HTTP request, what is known of its message, and the stream that its response may become."""

    __slots__ = ("admitted", "arrived", "caller", "head", "message", "path", "receive", "scope", "send", "stream")

    caller: Caller
    """Set after authentication."""

    def __init__(
        self, scope: Scope, path: RpcPath, head: RpcHead, receive: Receive, send: Send, arrived: float
    ) -> None:
        self.scope = scope
        self.path = path
        self.arrived = arrived
        self.admitted: AdmittedRequest | None = None
        self.head = head
        self.receive = receive
        self.send = send
        self.message: Any = None
        self.stream: EventStream | None = None

    @property
    def id(self) -> envelope.RequestId:
        """The id for a response about the whole message; null for a batch, or before the body is read."""
        return envelope.recover_id(self.message) if type(self.message) is dict else None


class RpcEndpoint:
    """The RCP endpoint of one gateway."""

    def __init__(self, dispatcher: Dispatcher, state: GatewayState) -> None:
        proxies = state.settings.server.trusted_proxies
        self._dispatcher = dispatcher
        self._state = state
        self._authenticator = state.authenticator
        self._client_address = ClientAddress(proxies) if proxies else None
        self._admission = state.admission
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = parse_path(scope["path"], self._dispatcher.knows)
        if path is None:  # the route matches `/engines//rcp`, too
            await not_found(scope, receive, send)
            return
        arrived = arrival_of(scope)
        head = self._read_headers(scope)
        request_id = head.request_id
        request = _RpcRequest(scope, path, head, receive, send, arrived)
        # Cheap checks come first, so that a flood of bad requests costs little.
        try:
            if scope["method"] != "POST":
                await self._refuse(
                    send, 405, InvalidRequest("RCP requests are sent with POST"), request_id, (b"allow", b"POST")
                )
            elif head.encoding not in ("", "identity"):
                await self._refuse(send, 415, COMPRESSED, request_id)
            elif head.length > self._max_body:
                await self._refuse_body(send, request_id)
            elif self._admission.full:
                # Before authentication, so that refusals stay cheap under overload.
                await self._refuse(send, 503, self._admission.refusal("full"), request_id, RETRY_AFTER)
            elif self._authenticator is not None:
                await self._serve_authenticated(self._authenticator, request, scope)
            elif path.engine is not None and not self._dispatcher.knows(path.engine):
                await self._refuse_unknown_engine(send, path.engine, request_id)
            else:
                request.caller = Caller(
                    request_id,
                    session=head.session,
                    engine=path.engine,
                    address=self._address(scope),
                    since=arrived,
                    trace=head.trace,
                    sent_id=head.sent_id,
                )
                await self._serve(request)
        except ClientDisconnected:
            await close_connection(scope, receive)
        except asyncio.CancelledError:
            # The server stops. Without this, uvicorn would answer with a plain 500.
            with suppress(Exception):
                async with asyncio.timeout(SHUTDOWN_ERROR_SECONDS):
                    await self._refuse(send, 503, SHUTTING_DOWN, request_id, message_id=request.id)
            if not self._state.readiness.draining:
                raise

    @property
    def _max_body(self) -> int:
        return self._state.settings.server.max_body_bytes

    async def _serve_authenticated(self, authenticator: Authenticator, request: _RpcRequest, scope: Scope) -> None:
        """Authenticate the caller and serve it, until its credential is revoked."""
        path, head, send = request.path, request.head, request.send
        request_id = head.request_id
        try:
            principal = await authenticator.identify(scope)
        except AuthError as error:
            request.message = None if error.quiet else await self._read_ahead(request.receive)
            await self._refuse_caller(error, request)
            return
        if path.engine is not None and not self._dispatcher.knows(path.engine, principal.tenant):
            await self._refuse_unknown_engine(send, path.engine, request_id)
            return
        running = authenticator.enter(principal)
        request.admitted = AdmittedRequest(authenticator, principal, running)
        request.caller = Caller(
            request_id,
            session=head.session,
            engine=path.engine,
            address=principal.owner.address,
            tenant=principal.tenant,
            key_id=principal.key_id,
            since=request.arrived,
            trace=head.trace,
            sent_id=head.sent_id,
        )
        try:
            await self._serve(request)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            # Fails if a part of the response has been sent already.
            with suppress(RuntimeError):
                await self._refuse_caller(AuthError(401, REVOKED, CHALLENGE), request)
        finally:
            authenticator.leave(principal, running)

    async def _serve(self, request: _RpcRequest) -> None:
        """Read the body and send the response."""
        head, send = request.head, request.send
        body = await read_whole_body(request.receive, self._max_body)
        if body is None:
            await self._refuse_body(send, head.request_id)
            return
        try:
            answer = await self._answer(body, request)
            if type(answer) is BusyResponse and not (request.stream is not None and request.stream.opened):
                await send_answer(send, 503, answer, head.request_id, RETRY_AFTER)
            elif request.stream is not None and request.stream.opened and answer is not None:
                await request.stream.finish(answer)
            elif answer is None or not send_at_once(request.scope, answer, head.request_id):
                await send_answer(send, 200, answer, head.request_id)
        except AuthError as error:
            await self._refuse_caller(error, request)
        except RcpError as fault:
            headers = (RETRY_AFTER,) if isinstance(fault, GatewayBusy) else ()
            await self._refuse(send, STATUSES.get(type(fault), 400), fault, head.request_id, *headers)
        finally:
            if request.stream is not None:
                await request.stream.end()
        if request.stream is not None and request.stream.given_up:
            raise ClientDisconnected

    async def _answer(self, body: bytes, request: "_RpcRequest") -> bytes | None:
        """Admit the request and answer its message or batch.

        Raises RcpError for a body that is not JSON-RPC, and for a request beyond the admission limit.
        """
        head = request.head
        caller = request.caller
        admission = self._admission
        if not admission.try_enter():
            await admission.enter()
        places = 1  # of the admission limit
        try:
            message = request.message = envelope.read_body(body)
            if request.admitted is not None:
                await request.admitted.authenticator.spend(request.admitted.principal, message)
            if type(message) is dict and "method" in message:
                watch = DisconnectWatcher(request.receive)
                if head.accept and sse.accepted(head.accept):
                    server_settings = self._state.settings.server
                    request.stream = EventStream(request.send, head.request_id, server_settings, watch.disconnect)
                work = self._dispatcher.message(message, caller, request.path.method or None, request.stream)
            elif type(message) is list:
                if 1 < len(message) <= self._state.settings.server.max_batch:
                    admission.widen(len(message) - 1)
                    places = len(message)
                watch = DisconnectWatcher(request.receive)
                work = self._dispatcher.batch(message, caller, request.path.method or None)
            else:
                raise InvalidRequest(NO_JSON_RPC)
            return await unless_disconnected(work, watch)
        except asyncio.CancelledError:
            if request.stream is None or not request.stream.opened:
                raise
            # A stream has status 200 already, so the error becomes its last frame.
            message_id = request.id
            if request.admitted is not None and request.admitted.running.is_the_cause():
                return self._dispatcher.refused(REVOKED, caller.request_id, 200, message_id)
            await _send_shutdown_error(request.stream, message_id)
            raise
        finally:
            # Released before the response is sent: a slow reader must not occupy a place.
            admission.leave(places)

    def _address(self, scope: Scope) -> str:
        """The client address of a caller without authentication."""
        if self._client_address is not None:
            return self._client_address.address(scope)
        client = scope.get("client")
        return client[0] if client else ""

    async def _read_ahead(self, receive: Receive) -> Any:
        """The message of a refused caller, for its id in the response; None if it is too long or invalid."""
        body = await read_whole_body(receive, self._max_body)
        if body is None or len(body) > MAX_READ_AHEAD:
            return None
        try:
            return envelope.read_body(body)
        except RcpError:
            return None

    async def _refuse_caller(self, error: AuthError, request: _RpcRequest) -> None:
        """Send the response for an authentication error, or for an exceeded limit."""
        request_id = request.head.request_id
        body = self._dispatcher.refused_caller(error, request_id, request.id)
        # Quiet refusals are repeated failures, and their connection is not kept. Their body has not been read either.
        headers = (*error.headers, CLOSE) if error.quiet else error.headers
        await send_answer(request.send, error.status, body, request_id, *headers)

    async def _refuse_unknown_engine(self, send: Send, engine_id: str, request_id: str) -> None:
        await self._refuse(send, 404, NotFound(f"there is no engine '{engine_id[:128]}'"), request_id)

    async def _refuse_body(self, send: Send, request_id: str) -> None:
        fault = PayloadTooLarge(f"a request may be at most {self._max_body} bytes long", field="body")
        await self._refuse(send, 413, fault, request_id, CLOSE)

    async def _refuse(
        self,
        send: Send,
        status: int,
        fault: RcpError,
        request_id: str,
        *headers: tuple[bytes, bytes],
        message_id: envelope.RequestId = None,
    ) -> None:
        body = self._dispatcher.refused(fault, request_id, status, message_id)
        await send_answer(send, status, body, request_id, *headers)

    def _read_headers(self, scope: Scope) -> RpcHead:
        """The relevant headers, in one pass: this runs for every request."""
        request_id, encoding, length = "", "", 0
        accept = session = parent = state = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                # int() refuses very long numbers, and 20 digits are more than any body has.
                length = int(value[:20]) if value.isdigit() else 0
            elif name == b"accept":
                accept = accept + b"," + value if accept else value
            elif name == b"x-request-id":
                sent = value.decode("latin-1")
                request_id = sent if VALID_REQUEST_ID.fullmatch(sent) else ""
            elif name == b"content-encoding" and encoding in ("", "identity"):
                encoding = value.decode("latin-1").strip().lower()
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                # Of `gzip, chunked`, the parser removes the chunks only, so the body would still be compressed.
                encoding = "coded"
            elif name == b"rcp-session":
                session = value
            elif name == b"traceparent":
                parent = value
            elif name == b"tracestate":
                state = state + b"," + value if state else value
        if accept and scope.get("http_version") == "1.0":
            # HTTP/1.0 has no chunks, so a caller could not distinguish the end of a stream from a broken connection.
            accept = b""
        known = session.decode("latin-1") if session and len(session) <= MAX_SESSION else None
        trace = read_trace(parent, state) if parent else None
        return RpcHead(request_id or next(self._request_ids), encoding, length, accept, known, trace, request_id)

    def __repr__(self) -> str:
        return f"<RpcEndpoint {BASE} up to {self._max_body} bytes, {self._dispatcher!r}>"


def rpc_routes(endpoint: RpcEndpoint) -> list[Route]:
    """The routes of RCP. The endpoint parses the path itself, because ids and methods can contain slashes."""
    federation = (BASE, f"{BASE}/{{method:path}}")
    paths = (*federation, *(f"{ENGINES}{{id:path}}{path}" for path in federation))
    return [Route(path, endpoint, name=f"rcp {path}", include_in_schema=False) for path in paths]


async def _send_shutdown_error(stream: EventStream, message_id: envelope.RequestId) -> None:
    """End a stream that shutdown cuts off with an error frame."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_ERROR_SECONDS):
            await stream.finish(envelope.failure(message_id, SHUTTING_DOWN))
