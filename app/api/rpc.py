"""The RCP endpoint: `POST /rcp/{method}` and `POST /engines/{id}/rcp/{method}`, as a plain ASGI application.

It reads headers and body, authenticates, and sends the answer as one body or as an event stream with the HTTP status of
RCP §5.2. A caller that disconnects cancels its request.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from secrets import token_hex
from types import MappingProxyType
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.routing import Route

from app.api.admission import RETRY_AFTER_MS, overload_error
from app.api.auth.authentication import Authenticator
from app.api.auth.client_address import ClientAddress
from app.api.auth.principal import AuthError, Principal
from app.api.caller import Caller, arrival_of
from app.api.disconnects import ClientDisconnected, DisconnectWatcher, close_connection, unless_hung_up
from app.api.dispatch import BusyResponse, Dispatcher
from app.api.gateway_state import GatewayState
from app.api.responses import CLOSE, RETRY_AFTER, Asgi, Receive, Scope, not_found, send_answer, send_at_once
from app.api.rpc_path import BASE, ENGINES, RpcPath, parse_path
from app.api.running_requests import RunningRequest
from app.api.streaming import EventStream, Send
from app.protocol import envelope, sse
from app.protocol.errors import (
    BackendUnavailable,
    GatewayBusy,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RcpError,
    Unauthorized,
)
from app.telemetry.logs import logger
from app.telemetry.tracing import Trace, read_trace

STATUSES = {PayloadTooLarge: 413, GatewayBusy: 503}
"""HTTP's status for what keeps a body from becoming messages; any other reason is 400."""

SHUTDOWN_MESSAGE = "the gateway is shutting down"

COMPRESSED = InvalidRequest("compressed request bodies are not accepted")
NO_JSON_RPC = "the body is no JSON-RPC: a request is an object with a 'method', a batch a list of them"

SHUTDOWN_ERROR_SECONDS = 1.0
"""For telling a caller that its request is cut off by the end of the gateway."""

MAX_SESSION = 256
"""Bytes of an `RCP-Session` header; a longer one is as good as none."""

MAX_READ_AHEAD = 65_536
"""Bytes of a body that are looked at for the id of somebody who is turned away."""

REVOKED = Unauthorized("the credential is no longer valid")
CHALLENGE = (b"www-authenticate", b'Bearer realm="rcp", error="invalid_token"')

_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RpcHead(NamedTuple):
    """What the headers of a request say to this door; a named tuple, since one is made per request."""

    request_id: str
    encoding: str
    length: int
    accept: bytes
    session: str | None
    trace: Trace | None = None
    sent_id: str = ""
    """The caller's own request id, if it is sound."""


class AdmittedRequest(NamedTuple):
    """A caller that was let in, at work."""

    authenticator: Authenticator
    principal: Principal
    running: RunningRequest


class _ResponseSender:
    """One request on its way through the door: where it came from, and the stream its answer may become."""

    __slots__ = ("admitted", "arrived", "caller", "head", "message", "path", "receive", "scope", "send", "stream")

    caller: Caller
    """Who asks; set as soon as that is known."""

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
        """What an answer is to carry that is about the message as a whole; null for a batch, or before it is read."""
        return envelope.recover_id(self.message) if type(self.message) is dict else None


class RpcEndpoint:
    """The RCP endpoint of one gateway: a plain ASGI application, for FastAPI's handling of requests costs too much."""

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
        if path is None:  # such as `/engines//rcp`
            await not_found(scope, receive, send)
            return
        arrived = arrival_of(scope)
        head = self._read_headers(scope)
        request_id = head.request_id
        request = _ResponseSender(scope, path, head, receive, send, arrived)
        try:
            if scope["method"] != "POST":
                await self._refuse(
                    send, 405, InvalidRequest("RCP is spoken with POST"), request_id, (b"allow", b"POST")
                )
            elif head.encoding not in ("", "identity"):
                await self._refuse(send, 415, COMPRESSED, request_id)
            elif head.length > self._max_body:
                await self._refuse_body(send, request_id)
            elif self._admission.full:  # before who asks is looked at, and the body read
                await self._refuse(send, 503, self._admission.refusal("full"), request_id, RETRY_AFTER)
            elif self._authenticator is not None:
                await self._serve_authenticated(self._authenticator, request, scope)
            elif path.engine is not None and not self._dispatcher.knows(path.engine):
                await self._refuse_unknown_engine(send, path.engine, request_id)
            else:
                request.caller = Caller(
                    request_id,
                    head.session,
                    path.engine,
                    self._address(scope),
                    since=arrived,
                    trace=head.trace,
                    sent_id=head.sent_id,
                )
                await self._serve(request)
        except ClientDisconnected:
            await close_connection(scope, receive)
        except asyncio.CancelledError:
            # The server ends and waits no longer. Whoever still waits is told so, and not by uvicorn's plain 500.
            with suppress(Exception):
                async with asyncio.timeout(SHUTDOWN_ERROR_SECONDS):
                    fault = BackendUnavailable(SHUTDOWN_MESSAGE, retryable=True)
                    await self._refuse(send, 503, fault, request_id, message_id=request.id)
            if not self._state.readiness.draining:
                raise

    @property
    def _max_body(self) -> int:
        return self._state.settings.server.max_body_bytes

    async def _serve_authenticated(self, authenticator: Authenticator, request: _ResponseSender, scope: Scope) -> None:
        """Serve whom the guard lets in, for as long as its credential is good."""
        path, head, send = request.path, request.head, request.send
        request_id = head.request_id
        try:
            principal = await authenticator.identify(scope)
        except AuthError as away:
            request.message = None if away.quiet else await self._read_ahead(request.receive)
            await self._refuse_caller(away, request)
            return
        if path.engine is not None and not self._dispatcher.knows(path.engine, principal.tenant):
            await self._refuse_unknown_engine(send, path.engine, request_id)
            return
        running = authenticator.enter(principal)
        address = principal.owner.address
        request.admitted = AdmittedRequest(authenticator, principal, running)
        request.caller = Caller(
            request_id,
            head.session,
            path.engine,
            address,
            principal.tenant,
            principal.key_id,
            request.arrived,
            head.trace,
            sent_id=head.sent_id,
        )
        try:
            await self._serve(request)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            with suppress(RuntimeError):  # part of an answer may be on its way
                await self._refuse_caller(AuthError(401, REVOKED, CHALLENGE), request)
        finally:
            authenticator.leave(principal, running)

    async def _serve(self, request: _ResponseSender) -> None:
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
        except AuthError as away:
            await self._refuse_caller(away, request)
        except RcpError as fault:
            headers = (RETRY_AFTER,) if isinstance(fault, GatewayBusy) else ()
            await self._refuse(send, STATUSES.get(type(fault), 400), fault, head.request_id, *headers)
        finally:
            if request.stream is not None:
                await request.stream.end()
        if request.stream is not None and request.stream.given_up:
            raise ClientDisconnected

    async def _answer(self, body: bytes, request: "_ResponseSender") -> bytes | None:
        """The answer to a body that was taken on; its place is free again before anything of it is sent.

        Raises RcpError for a body that is no message, or that there is no room for.
        """
        head = request.head
        caller = request.caller
        admission = self._admission
        if not admission.try_enter():
            await admission.enter()
        places = 1
        try:
            message = request.message = envelope.read_body(body)
            if request.admitted is not None:
                await request.admitted.authenticator.spend(request.admitted.principal, message)
            if type(message) is dict and "method" in message:
                watch = DisconnectWatcher(request.receive)
                if head.accept and sse.accepted(head.accept):
                    server_settings = self._state.settings.server
                    request.stream = EventStream(request.send, head.request_id, server_settings, watch.hang_up)
                work = self._dispatcher.message(message, caller, request.path.method or None, request.stream)
            elif type(message) is list:
                if 1 < len(message) <= self._state.settings.server.max_batch:
                    admission.widen(len(message) - 1)
                    places = len(message)
                watch = DisconnectWatcher(request.receive)
                work = self._dispatcher.batch(message, caller, request.path.method or None)
            else:
                raise InvalidRequest(NO_JSON_RPC)
            return await unless_hung_up(work, watch)
        except asyncio.CancelledError:
            if request.stream is None or not request.stream.opened:
                raise
            message_id = request.id
            if request.admitted is not None and request.admitted.running.is_the_cause():
                return self._dispatcher.refused(REVOKED, caller.request_id, 200, message_id)
            await _send_shutdown_error(request.stream, message_id)
            raise
        finally:
            admission.leave(places)

    def _address(self, scope: Scope) -> str:
        """Where a caller connects from whom nobody asks who it is."""
        if self._client_address is not None:
            return self._client_address.address(scope)
        client = scope.get("client")
        return client[0] if client else ""

    async def _read_ahead(self, receive: Receive) -> Any:
        """The message of somebody who is turned away, so that its id can be echoed; None if it is too long to look."""
        body = await read_whole_body(receive, self._max_body)
        if body is None or len(body) > MAX_READ_AHEAD:
            return None
        try:
            return envelope.read_body(body)
        except RcpError:
            return None

    async def _refuse_caller(self, away: AuthError, request: _ResponseSender) -> None:
        """Answer somebody whom the guard does not let in, or no further."""
        request_id = request.head.request_id
        body = self._dispatcher.refused_caller(away, request_id, request.id)
        headers = (*away.headers, CLOSE) if away.quiet else away.headers
        await send_answer(request.send, away.status, body, request_id, *headers)

    async def _refuse_unknown_engine(self, send: Send, engine_id: str, request_id: str) -> None:
        await self._refuse(send, 404, NotFound(f"no engine '{engine_id[:128]}' is behind here"), request_id)

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
        """What matters of the headers, in one pass; a sane request id of the caller's is kept."""
        request_id, encoding, length = "", "", 0
        accept = session = parent = state = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value[:20]) if value.isdigit() else 0  # longer than any body; int() refuses very long ones
            elif name == b"accept":
                accept = accept + b"," + value if accept else value
            elif name == b"x-request-id":
                sent = value.decode("latin-1")
                request_id = sent if _VALID_ID.fullmatch(sent) else ""
            elif name == b"content-encoding" and encoding in ("", "identity"):
                encoding = value.decode("latin-1").strip().lower()
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                encoding = "coded"  # the parser takes the chunks of `gzip, chunked` for the body
            elif name == b"rcp-session":
                session = value
            elif name == b"traceparent":
                parent = value
            elif name == b"tracestate":
                state = state + b"," + value if state else value
        if accept and scope.get("http_version") == "1.0":
            accept = b""  # it knows no chunks, and no other way to tell the end of a stream from its breaking off
        known = session.decode("latin-1") if session and len(session) <= MAX_SESSION else None
        trace = read_trace(parent, state) if parent else None
        return RpcHead(request_id or next(self._request_ids), encoding, length, accept, known, trace, request_id)

    def __repr__(self) -> str:
        return f"<RpcEndpoint {BASE} up to {self._max_body} bytes, {self._dispatcher!r}>"


class GatewayApplication(FastAPI):
    """FastAPI, with a shorter way to the routes of RCP and MCP.

    FastAPI's five layers of middleware and its router cost 7 % of the CPU of a retrieve, and do nothing for these
    endpoints. Middleware that the settings add is never skipped.
    """

    direct: Mapping[str, Asgi] = MappingProxyType({})
    """Path -> the endpoint of its route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.direct.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is not None and not self.user_middleware:
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def rpc_routes(endpoint: RpcEndpoint) -> list[Route]:
    """The routes of RCP. The endpoint reads the path again: an engine's id and a method may both hold slashes."""
    federation = (BASE, f"{BASE}/{{method:path}}")
    paths = (*federation, *(f"{ENGINES}{{id:path}}{path}" for path in federation))
    return [Route(path, endpoint, name=f"rcp {path}", include_in_schema=False) for path in paths]


class OverloadRefusal:
    """Refusals that the server sends by itself while the gateway is full, before ASGI and without reading the body."""

    retry_after = RETRY_AFTER_MS / 1000
    """Seconds after which a refused caller may ask again."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._fault = overload_error()
        self._body = envelope.failure(None, self._fault)
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))

    def refuses(self, scope: Scope) -> bool:
        """Whether the request of this scope can only be refused now; those other than RCP are not."""
        if not self._state.admission.full or scope["method"] != "POST":
            return False
        path = scope["path"]
        return path == BASE or path.startswith(f"{BASE}/") or (path.startswith(ENGINES) and BASE in path)

    def refusal(self, scope: Scope) -> tuple[bytes, bytes]:
        """(header lines, body) of the 503, which is counted and logged."""
        fault = self._fault
        request_id = valid_request_id(scope["headers"]) or next(self._request_ids)
        self._state.metrics.server.refused("full")
        self._state.metrics.error(fault.code)
        logger().info("refused", request_id=request_id, status=503, code=fault.code, detail=fault.message)
        lines = b"x-request-id: %b\r\ncontent-type: application/json\r\n%b: %b\r\n" % (
            request_id.encode(),
            *RETRY_AFTER,
        )
        return lines, self._body

    def __repr__(self) -> str:
        return f"<OverloadRefusal of {self._state.admission!r}>"


async def read_whole_body(receive: Receive, most: int) -> bytes | None:
    """The whole body, or None as soon as it is longer than `most`. Raises ClientDisconnected."""
    event = await receive()
    if event["type"] == "http.disconnect":
        raise ClientDisconnected
    body: bytes = event.get("body", b"")
    if not event.get("more_body", False):
        return body if len(body) <= most else None
    parts = [body]
    size = len(body)
    while event.get("more_body", False):
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
    return b"".join(parts)


def valid_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's own `X-Request-ID` if it may stand in a log and in a header; else empty."""
    for name, value in headers:
        if name == b"x-request-id":
            sent = value.decode("latin-1")
            return sent if _VALID_ID.fullmatch(sent) else ""
    return ""


async def _send_shutdown_error(stream: EventStream, message_id: envelope.RequestId) -> None:
    """End a stream that is cut off with the error that says so."""
    fault = BackendUnavailable(SHUTDOWN_MESSAGE, retryable=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_ERROR_SECONDS):
            await stream.finish(envelope.failure(message_id, fault))
