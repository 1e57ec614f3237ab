"""POST /rcp/{method} and /engines/{id}/rcp/{method}: body -> message -> dispatch -> JSON or events; raw ASGI.

It decides which HTTP status an answer has (RCP §5.2), whether it is one body with its length or a stream, and that a
caller that hangs up cancels its request. It refuses to know methods; other paths are left to the application behind.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple

from app.api.caller import Caller
from app.api.cancel import Running
from app.api.dispatch import Dispatcher
from app.api.guard import Guard
from app.api.origin import Origin
from app.api.place import BASE, Place, place_of
from app.api.stream import EventStream, Send
from app.api.visit import TurnedAway, Visit
from app.protocol import envelope, sse
from app.protocol.errors import (
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    ParseError,
    PayloadTooLarge,
    RcpError,
    Unauthorized,
)
from app.settings.schema import ServerSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

WATCH_AFTER = 0.05
"""Seconds until a request that is still under way is watched for its caller hanging up; most are answered before."""

NO_JSON_RPC = "the body is no JSON-RPC: a request is an object with a 'method', a batch a list of them"

MAX_SESSION = 256
"""Bytes of an `RCP-Session` header; a longer one is as good as none."""

MAX_PEEK = 65_536
"""Bytes of a body that are looked at for the id of somebody who is turned away."""

REVOKED = Unauthorized("the credential is no longer valid")
CHALLENGE = (b"www-authenticate", b'Bearer realm="rcp", error="invalid_token"')

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class HungUp(Exception):
    """The caller went away before its request was answered."""


class Head(NamedTuple):
    """What the headers of a request say to this door; a named tuple, since one is made per request."""

    request_id: str
    encoding: str
    length: int
    accept: bytes
    session: str | None


class Admitted(NamedTuple):
    """A caller that was let in, at work."""

    guard: Guard
    visit: Visit
    running: Running


class RpcDoor:
    """The RCP endpoint in front of `app`."""

    def __init__(self, app: Asgi, dispatcher: Dispatcher, settings: ServerSettings, guard: Guard | None = None) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._guard = guard
        self._origin = Origin(settings.trusted_proxies) if settings.trusted_proxies else None
        self._settings = settings
        self._max_body = settings.max_body_bytes
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = place_of(scope["path"], self._dispatcher.knows) if scope["type"] == "http" else None
        if place is None:
            await self._app(scope, receive, send)
            return
        head = self._read_headers(scope["headers"])
        request_id = head.request_id
        try:
            if scope["method"] != "POST":
                await self._refuse(
                    send, 405, InvalidRequest("RCP is spoken with POST"), request_id, (b"allow", b"POST")
                )
            elif head.encoding not in ("", "identity"):
                await self._refuse(send, 415, InvalidRequest("compressed request bodies are not accepted"), request_id)
            elif head.length > self._max_body:
                await self._refuse_body(send, request_id)
            elif self._guard is not None:
                await self._serve_known(self._guard, place, head, scope, receive, send)
            elif place.engine is not None and not self._dispatcher.knows(place.engine):
                await self._refuse_engine(send, place.engine, request_id)
            else:
                caller = Caller(request_id, head.session, place.engine, self._address(scope))
                await self._serve(place, head, caller, None, receive, send)
        except HungUp:
            return
        except asyncio.CancelledError:
            # The server ends and waits no longer. Whoever still waits is told so, and not by uvicorn's plain 500.
            with suppress(Exception):
                fault = BackendUnavailable("the gateway is shutting down", retryable=True)
                await self._refuse(send, 503, fault, request_id)
            raise

    async def _serve_known(
        self, guard: Guard, place: Place, head: Head, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve whom the guard lets in, for as long as its credential is good."""
        request_id = head.request_id
        try:
            visit = await guard.identify(scope)
        except TurnedAway as away:
            message = None if away.quiet else await self._peek(receive)
            await self._turn_away(away, message, request_id, send)
            return
        if place.engine is not None and not self._dispatcher.knows(place.engine, visit.tenant):
            await self._refuse_engine(send, place.engine, request_id)
            return
        running = guard.enter(visit)
        caller = Caller(request_id, head.session, place.engine, visit.owner.address, visit.tenant, visit.key_id)
        try:
            await self._serve(place, head, caller, Admitted(guard, visit, running), receive, send)
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            with suppress(RuntimeError):  # part of an answer may be on its way
                await self._turn_away(TurnedAway(401, REVOKED, CHALLENGE), None, request_id, send)
        finally:
            guard.leave(visit, running)

    async def _serve(
        self,
        place: Place,
        head: Head,
        caller: Caller,
        admitted: Admitted | None,
        receive: Receive,
        send: Send,
    ) -> None:
        body = await self._read_body(receive)
        request_id = head.request_id
        if body is None:
            await self._refuse_body(send, request_id)
            return
        try:
            message = envelope.read_body(body)
        except ParseError as fault:
            await self._refuse(send, 400, fault, request_id)
            return
        if admitted is not None:
            try:
                await admitted.guard.spend(admitted.visit, message)
            except TurnedAway as away:
                await self._turn_away(away, message, request_id, send)
                return
        named = place.method or None
        if type(message) is dict and "method" in message:
            if head.accept and sse.accepted(head.accept):
                await self._serve_events(message, caller, named, admitted, receive, send)
                return
            work = self._dispatcher.message(message, caller, named)
            await _send_answer(send, 200, await _unless_hung_up(work, _Watch(receive)), request_id)
        elif type(message) is list and message:
            work = self._dispatcher.batch(message, caller, named)
            await _send_answer(send, 200, await _unless_hung_up(work, _Watch(receive)), request_id)
        else:
            await self._refuse(send, 400, InvalidRequest(NO_JSON_RPC), request_id)

    async def _serve_events(
        self,
        message: dict[str, Any],
        caller: Caller,
        path_method: str | None,
        admitted: Admitted | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """One message of a caller that takes events: a stream if there is something to tell, else a plain answer."""
        watch = _Watch(receive)
        stream = EventStream(send, caller.request_id, self._settings, watch.hang_up)
        work = self._dispatcher.message(message, caller, path_method, stream)
        try:
            answer = await _unless_hung_up(work, watch)
            if stream.opened and answer is not None:
                await stream.finish(answer)
            else:
                await _send_answer(send, 200, answer, caller.request_id)
        except asyncio.CancelledError:
            if admitted is None or not stream.opened or not admitted.running.is_the_cause():
                raise
            away = self._dispatcher.refused(REVOKED, caller.request_id, 200, envelope.recover_id(message))
            await stream.finish(away)
        finally:
            await stream.end()

    def _address(self, scope: Scope) -> str:
        """Where a caller connects from whom nobody asks who it is."""
        if self._origin is not None:
            return self._origin.address(scope)
        client = scope.get("client")
        return client[0] if client else ""

    async def _peek(self, receive: Receive) -> Any:
        """The message of somebody who is turned away, so that its id can be echoed; None if it is too long to look."""
        body = await self._read_body(receive)
        if body is None or len(body) > MAX_PEEK:
            return None
        try:
            return envelope.read_body(body)
        except ParseError:
            return None

    async def _turn_away(self, away: TurnedAway, message: Any, request_id: str, send: Send) -> None:
        """Answer somebody whom the guard does not let in, or no further."""
        message_id = envelope.recover_id(message) if type(message) is dict else None
        body = self._dispatcher.turned_away(away, request_id, message_id)
        headers = (*away.headers, (b"connection", b"close")) if away.quiet else away.headers
        await _send_answer(send, away.status, body, request_id, *headers)

    async def _read_body(self, receive: Receive) -> bytes | None:
        """The whole body, or None as soon as it is longer than allowed. Raises HungUp."""
        event = await receive()
        if event["type"] == "http.disconnect":
            raise HungUp
        body: bytes = event.get("body", b"")
        if not event.get("more_body", False):
            return body if len(body) <= self._max_body else None
        parts = [body]
        size = len(body)
        while event.get("more_body", False):
            event = await receive()
            if event["type"] == "http.disconnect":
                raise HungUp
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                return None
        return b"".join(parts)

    async def _refuse_engine(self, send: Send, engine_id: str, request_id: str) -> None:
        await self._refuse(send, 404, NotFound(f"no engine '{engine_id[:128]}' is behind here"), request_id)

    async def _refuse_body(self, send: Send, request_id: str) -> None:
        fault = PayloadTooLarge(f"a request may be at most {self._max_body} bytes long", field="body")
        await self._refuse(send, 413, fault, request_id, (b"connection", b"close"))

    async def _refuse(
        self, send: Send, status: int, fault: RcpError, request_id: str, *headers: tuple[bytes, bytes]
    ) -> None:
        await _send_answer(send, status, self._dispatcher.refused(fault, request_id, status), request_id, *headers)

    def _read_headers(self, headers: list[tuple[bytes, bytes]]) -> Head:
        """What matters of the headers, in one pass; a sane request id of the caller's is kept."""
        request_id = encoding = ""
        length = 0
        accept = session = b""
        for name, value in headers:
            if name == b"content-length":
                length = int(value[:20]) if value.isdigit() else 0  # longer than any body; int() refuses very long ones
            elif name == b"accept":
                accept = accept + b"," + value if accept else value
            elif name == b"x-request-id":
                sent = value.decode("latin-1")
                request_id = sent if _SANE_ID.fullmatch(sent) else ""
            elif name == b"content-encoding":
                encoding = value.decode("latin-1").strip().lower()
            elif name == b"rcp-session":
                session = value
        known = session.decode("latin-1") if session and len(session) <= MAX_SESSION else None
        return Head(request_id or next(self._request_ids), encoding, length, accept, known)

    def __repr__(self) -> str:
        return f"<RpcDoor {BASE} up to {self._max_body} bytes, {self._dispatcher!r}>"


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to a path that nobody serves: 404 with a JSON-RPC body (RCP §5.2)."""
    fault = NotFound("no such path; RCP is spoken at POST /rcp and POST /rcp/{method}, and at /engines/{id}/rcp")
    await _send_answer(send, 404, envelope.failure(None, fault), "")


async def _send_answer(
    send: Send, status: int, body: bytes | None, request_id: str, *headers: tuple[bytes, bytes]
) -> None:
    head = [(b"x-request-id", request_id.encode()), *headers] if request_id else [*headers]
    if body is None:
        status, body = 204, b""
    else:
        head += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _unless_hung_up(work: Awaitable[bytes | None], watch: "_Watch") -> bytes | None:
    """Do `work`, but cancel it when the caller hangs up. Raises HungUp."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if watch.hung_up and task is not None and task.uncancel() == 0:
            raise HungUp from None
        raise
    finally:
        watch.end()


class _Watch:
    """Cancels the task it was made in when the caller disconnects. Costs a timer; a task only for slow requests."""

    __slots__ = ("_receive", "_task", "_timer", "_watcher", "hung_up")

    def __init__(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        self.hung_up = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER, self._start)

    def end(self) -> None:
        """The work is over: nobody cancels this task any more."""
        self._task = None
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def hang_up(self) -> None:
        """The caller is gone, or given up."""
        if self._task is not None:
            self.hung_up = True
            self._task.cancel()
            self._task = None

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()

    def __repr__(self) -> str:
        state = "hung up" if self.hung_up else "over" if self._task is None else "waiting"
        return f"<_Watch {state}{', listening' if self._watcher is not None else ''}>"
