"""From messages to responses: framing, the gating order of RCP §12, and the outcome of each request.

Gating order: malformed (-32600), no handshake although one is needed (-32001), not RCP (-32004), not offered (-32003),
then params (-32602) and options (-32005). HTTP, stdio and MCP use the same path, `_execute`.
"""

import asyncio
from collections.abc import Mapping
from math import ceil, inf
from time import perf_counter
from typing import Any, NamedTuple

from app.api.admission import RETRY_AFTER_MS
from app.api.audit_log import AuditLog, known
from app.api.auth.principal import AuthError
from app.api.caller import Caller
from app.api.gateway_state import GatewayState
from app.api.methods import RpcMethods, deadline_seconds
from app.api.rpc_sessions import HandshakePolicy, http_handshake
from app.api.running_requests import RunningRequest, RunningRequests
from app.api.single_engine import SingleEngineMethods
from app.api.streaming import StreamProgressListener
from app.federation.progress import ProgressListener
from app.federation.response import shortened
from app.federation.tenants import Tenant
from app.protocol import envelope
from app.protocol.content import simplest_params
from app.protocol.envelope import Request, RequestId
from app.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayBusy,
    InternalError,
    InvalidParams,
    InvalidRequest,
    RcpError,
)
from app.protocol.method_names import UNGATED
from app.resilience.admission_queue import AdmissionQueue, TooLate
from app.state.rate_limit import Reservation
from app.telemetry.logs import logger
from app.telemetry.tracing import OUTGOING, REQUEST_ID, Span, enter

NOTIFICATIONS = "notifications/"

ANSWERED_WITH_HITS = frozenset({"retrieve", "graph", "memory/recall"})

DEFAULT_HITS = 10
"""Hits of an answer whose request does not say (RCP §7.7)."""

RESERVED_SECONDS = 5.0
"""How much longer than its deadline a request keeps the hits that are reserved for it, if its gateway dies."""

BUSY_SHARE = 0.6
"""Share of the time until its deadline that a request may have to wait for engines whose slots are all taken."""

WELL = ("ok", "degraded")
"""How a request ends that got its answer."""


class BusyResponse(bytes):
    """The response to a request that the gateway is too busy for: HTTP sends it with 503 and `Retry-After`."""

    __slots__ = ()


class _Outcome(NamedTuple):
    """How one request ended."""

    body: bytes
    """The response as JSON; empty if it was not asked for."""
    result: dict[str, Any]
    error: RcpError | None


class Dispatcher:
    """Answers messages, one or many, on behalf of one gateway."""

    def __init__(self, state: GatewayState, handshake: HandshakePolicy | None = None) -> None:
        """`handshake`: what the door in front demands, by default what the settings demand over HTTP."""
        self._state = state
        self._handshake = handshake or http_handshake(state.settings, state.offers, state.backend)
        self._log = logger()
        self._in_flight = RunningRequests()
        self._queue = AdmissionQueue()
        self._methods = RpcMethods(state, lambda: self._queue.lag)
        self._single_engine = SingleEngineMethods(state, self._methods.call)

    async def message(
        self,
        message: Any,
        caller: Caller,
        path_method: str | None,
        stream: StreamProgressListener | None = None,
    ) -> bytes | None:
        """The response to one parsed message, or None for a notification.

        `path_method`: the method the URL names. `stream` is opened if the request wants to hear of its progress and has
        some; the response is then meant as its last frame.
        """
        try:
            request = envelope.read_request(message)
            if request.notification or (request.id is None and request.method.startswith(NOTIFICATIONS)):
                if request.method == envelope.CANCEL and path_method in (None, envelope.CANCEL):
                    self._cancel(request.params, caller)
                return None
            _check_shape(request, path_method)
        except InvalidRequest as fault:
            return self.refused(fault, caller.request_id, 200, envelope.recover_id(message))
        if stream is not None and not self._may_notify(request, caller, stream):
            stream = None
        return await self.respond(request, caller, stream)

    async def batch(self, messages: list[Any], caller: Caller, path_method: str | None) -> bytes | None:
        """The responses to a batch (RCP §11): members run at the same time; None if there is nothing to answer."""
        if not messages:
            return self.refused(InvalidRequest("an empty batch asks for nothing"), caller.request_id, 200)
        most = self._state.settings.server.max_batch
        if len(messages) > most:
            fault = InvalidParams(f"a batch may hold at most {most} messages", field="batch")
            return self.refused(fault, caller.request_id, 200)
        answers = await asyncio.gather(
            *(
                self.message(member, caller._replace(request_id=f"{caller.request_id}.{index}"), path_method)
                for index, member in enumerate(messages)
            )
        )
        bodies = [answer for answer in answers if answer is not None]
        return b"[" + b",".join(bodies) + b"]" if bodies else None

    async def respond(self, request: Request, caller: Caller, stream: StreamProgressListener | None = None) -> bytes:
        """The response to one request, as JSON. Whatever goes wrong becomes its error."""
        outcome = await self._execute(request, caller, self._handshake, stream)
        return BusyResponse(outcome.body) if isinstance(outcome.error, GatewayBusy) else outcome.body

    async def ask(
        self, method: str, params: dict[str, Any], caller: Caller, listener: ProgressListener | None = None
    ) -> dict[str, Any]:
        """The result of one request that came in another framing, such as MCP's. Raises RcpError.

        No handshake is demanded, since that framing has its own.
        """
        outcome = await self._execute(Request(method, params), caller, None, None, listener, encode=False)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    async def _execute(
        self,
        request: Request,
        caller: Caller,
        handshake: HandshakePolicy | None,
        stream: StreamProgressListener | None = None,
        listener: ProgressListener | None = None,
        *,
        encode: bool = True,
    ) -> _Outcome:
        """Answer, count, log and trace one request. This is the edge of a request: it raises CancelledError only."""
        started = perf_counter() - _waited(caller)
        self._state.metrics.requests_in_flight.inc()
        audit = AuditLog()
        reservation: Reservation | None = None
        error: RcpError | None = None
        body, result = b"", dict[str, Any]()
        span, caller = self._traced(request, caller)
        running = self._cancellable(request, caller, stream)
        try:
            await self._begin(request.method, request.params, caller)
            if handshake is not None:
                caller = await handshake.before(request.method, caller)
            params = simplest_params(request.method, request.params)
            if request.method in UNGATED:
                envelope.check_params(params)  # of other methods once it is clear that they are offered
            if stream is not None and not _wants_notifications(request, caller, stream):
                stream = None
            reservation = await self._reserve_hits(request.method, params, caller)
            # A stream hears of progress if its caller asked for that, a listener always.
            result = await self._answer(request.method, params, caller, stream or listener)
            if stream is not None:
                stream.open()
            if handshake is not None:
                await handshake.after(request.method, caller, request.params, result)
            if encode:
                body = envelope.success(request.id, self._reported(request, caller, result))
            audit.answered(result)
        except RcpError as fault:
            audit.failed(fault)
            error = fault
        except asyncio.CancelledError:
            audit.outcome = "cancelled"
            if running is None or not running.is_the_cause():
                raise
            audit.code = Cancelled.code
            error = Cancelled("cancelled by the caller")
        except Exception:  # noqa: BLE001 - the edge of a request: nothing but an RcpError leaves it
            audit.code = InternalError.code
            self._log.exception("internal_error", request_id=caller.request_id, method=known(request.method))
            error = InternalError("internal error; search the log for this request id")
        finally:
            if encode and error is not None:
                body = envelope.failure(request.id, error)
            if running is not None:
                self._in_flight.leave(running)
            self._record(span, request, caller, audit, perf_counter() - started, len(body) if encode else None)
            await self._release_hits(reservation, audit.hits, caller)
        return _Outcome(body, result, error)

    def _cancellable(
        self, request: Request, caller: Caller, stream: StreamProgressListener | None
    ) -> RunningRequest | None:
        """The request as `notifications/cancel` finds it; None if its caller has no way to name it."""
        scope = caller.cancel_scope
        if scope is None and stream is not None:
            scope = caller.stream_scope
        return None if scope is None or request.id is None else self._in_flight.enter(scope, request.id)

    async def _answer(
        self, method: str, params: dict[str, Any], caller: Caller, listener: ProgressListener | None
    ) -> dict[str, Any]:
        """The result of the federation, or of the one engine that the caller speaks to. Raises RcpError."""
        if caller.engine is not None:
            return await self._single_engine.answer(method, params, caller, listener)
        if listener is None:
            return await self._methods.of(method)(params, caller)
        return await self._methods.streamed[method](params, caller, listener)

    async def _begin(self, method: str, params: Any, caller: Caller) -> None:
        """Wait until the loop has time for a request. Raises DeadlineExceeded, Unauthorized."""
        federated = method == "retrieve" and caller.engine is None
        if federated:
            self._check_engines(params, caller)
        if not self._queue.may_begin():
            await self._wait(params, caller)
            if federated:  # less time is left now, and others have begun meanwhile
                self._check_engines(params, caller)
        if caller.tenant is not None:
            caller.tenant.check(method)

    def _check_engines(self, params: Any, caller: Caller) -> None:
        """Raises GatewayBusy if every engine has too many calls under way to answer this request in time.

        Calls of such a request would wait until its deadline, and those that were sent at last would be for nothing.
        """
        least = inf
        for engine in self._state.membership.current(caller.tenant).engines:
            seconds = engine.expected_seconds
            if seconds == 0.0:  # usually the first one
                return
            least = min(least, seconds)
        # Engine slots are only a part of what a request has to wait for while everything is saturated.
        expected = max(least, self._state.admission.expected_seconds)
        now = asyncio.get_running_loop().time()
        arrived = now if caller.since is None else caller.since
        left = arrived + deadline_seconds(params, self._state.settings) - now
        if least < inf and expected > left * BUSY_SHARE:
            raise GatewayBusy(
                "every engine has too many calls under way to answer before the deadline",
                retryable=True,
                retryAfterMs=RETRY_AFTER_MS,
            )

    async def _release_hits(self, reservation: Reservation | None, hits: int, caller: Caller) -> None:
        """Give back what was reserved and not answered."""
        if reservation is not None and self._state.authenticator is not None:
            await self._state.authenticator.release_hits(caller, reservation, hits)

    async def _reserve_hits(self, method: str, params: Any, caller: Caller) -> Reservation | None:
        """Set aside what the answer may hold of the caller's day. Raises RateLimited."""
        authenticator, settings = self._state.authenticator, self._state.settings
        if authenticator is None or caller.tenant is None or method in UNGATED:
            return None
        seconds = settings.retrieve.deadline_ms / 1000 + RESERVED_SECONDS
        return await authenticator.reserve_hits(caller, most_hits(method, params, settings.retrieve.max_k), seconds)

    async def _wait(self, params: Any, caller: Caller) -> None:
        """Wait until the loop has time for this request. Raises GatewayBusy at once if that will be too late, and
        DeadlineExceeded before the deadline."""
        arrived = asyncio.get_running_loop().time() if caller.since is None else caller.since
        try:
            await self._queue.wait(arrived + deadline_seconds(params, self._state.settings))
        except TooLate as fault:
            again = max(1, ceil(fault.seconds * 1000))
            if fault.at_once:
                raise GatewayBusy(
                    "the gateway has too many requests to answer before the deadline",
                    retryable=True,
                    retryAfterMs=max(again, RETRY_AFTER_MS),
                ) from None
            message = "the gateway has too much to do to answer before the deadline"
            raise DeadlineExceeded(message, retryable=True, retryAfterMs=again) from None

    def knows(self, engine_id: str, tenant: Tenant | None = None) -> bool:
        """Whether there is an engine of this id to speak to by itself, as far as this tenant sees."""
        if tenant is not None and not self._state.membership.sees(tenant, engine_id):
            return False
        return any(engine.id == engine_id for engine in self._state.engines.engines)

    def _reported(self, request: Request, caller: Caller, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result with the report of engines in the form that the caller, or else the operator, wants."""
        if request.method in UNGATED or caller.engine is not None:  # no report; or that of the engine itself
            return result
        options = request.params.get("x-gateway")
        form = options.get("report") if type(options) is dict else None
        return shortened(result, form or self._state.settings.retrieve.report)

    def _traced(self, request: Request, caller: Caller) -> tuple[Span | None, Caller]:
        """The span of a request where traces are wished for; else engines are told what the caller said."""
        REQUEST_ID.set(caller.sent_id)
        tracing = self._state.instrumentation.tracing
        if tracing is None:
            OUTGOING.set(caller.trace)  # also if there is none: the task may have served another request before
            return None, caller
        meta = request.params.get("_meta")
        trace_id = meta.get("traceId") if type(meta) is dict else None
        span = tracing.serve(known(request.method), caller.request_id, caller.trace, trace_id)
        enter(span)
        return span, caller._replace(trace=span.trace)

    def _record(
        self, span: Span | None, request: Request, caller: Caller, audit: AuditLog, took: float, size: int | None
    ) -> None:
        """Trace, count and log a request that has ended; `took` in seconds."""
        if span is not None:
            span.end(audit.outcome, well=audit.outcome in WELL, **audit.attributes())
        metrics = self._state.metrics
        if audit.outcome in WELL:
            self._state.admission.completed()
        metrics.requests_in_flight.dec()
        trace = caller.trace.id if caller.trace is not None and caller.trace.sampled else None
        metrics.request(known(request.method), audit.outcome, took, trace)
        if audit.outcome == "degraded":
            metrics.answers.degraded(audit.reasons())
        if audit.code is not None:
            metrics.error(audit.code)
        if caller.tenant is not None:
            metrics.callers.request(caller.tenant.id, audit.outcome)
        bodies = self._state.settings.log.bodies
        self._log.info("request", **audit.line(request, caller, took, size, bodies=bodies))

    def refused(self, fault: RcpError, request_id: str, status: int | None, message_id: RequestId = None) -> bytes:
        """The response to what never became a request; it is counted and logged like one. `status`: HTTP's."""
        self._state.metrics.error(fault.code)
        self._log.info("refused", request_id=request_id, status=status, code=fault.code, detail=fault.message)
        return envelope.failure(message_id, fault)

    def refused_caller(self, away: AuthError, request_id: str, message_id: RequestId) -> bytes:
        """The response to somebody whom the guard did not let in, or no further; counted, and logged if worth it."""
        fault = away.fault
        self._state.metrics.error(fault.code)
        if not away.quiet:
            who = {} if away.principal is None else {"tenant": away.principal.tenant.id, "key": away.principal.key_id}
            line = {"request_id": request_id, **who, "status": away.status, "code": fault.code}
            self._log.info("refused", **line, detail=fault.message)
        return envelope.failure(message_id, fault)

    def _cancel(self, params: dict[str, Any], caller: Caller) -> None:
        """`notifications/cancel` (RCP §7): whatever it names is called off if it is the same session's.

        A caller that names no session can still call off its streams, by who it is.
        """
        message_id = envelope.recover_id(params)
        if message_id is None:
            return
        if caller.cancel_scope is not None:
            self._in_flight.cancel(caller.cancel_scope, message_id)
        elif caller.stream_scope is not None:
            self._in_flight.cancel_only(caller.stream_scope, message_id)

    def _may_notify(self, request: Request, caller: Caller, stream: StreamProgressListener) -> bool:
        """Whether the method of this request can say how it comes along, and its caller may hear of that (RCP §9)."""
        can_say = request.method in self._methods.streamed if caller.engine is None else request.method not in UNGATED
        return can_say and (stream.logs_alone or _wants_notifications(request, caller, stream))

    def __repr__(self) -> str:
        return f"<Dispatcher {self._methods!r}, {self._in_flight!r}, {self._state.readiness!r}>"


def most_hits(method: str, params: Any, max_k: int) -> int:
    """How many hits the answer to a request may hold, before its params are checked; 0 where it usually holds none."""
    if method not in ANSWERED_WITH_HITS:
        return 0
    asked = params.get("n" if method == "memory/recall" else "k") if type(params) is dict else None
    return min(asked if type(asked) is int and asked >= 1 else DEFAULT_HITS, max_k)


def _waited(caller: Caller) -> float:
    """Seconds since the caller's bytes came."""
    # The loop's own clock may be no finer than a millisecond, so it measures only this part of the time.
    return 0.0 if caller.since is None else max(0.0, asyncio.get_running_loop().time() - caller.since)


def _wants_notifications(request: Request, caller: Caller, stream: StreamProgressListener) -> bool:
    """Whether the caller asked for progress, or, where that is enough, for a log: in this request or its session."""
    meta = request.params.get("_meta") if type(request.params) is dict else None
    meta = meta if type(meta) is dict else {}
    if meta.get("progressToken") is not None:
        return True
    return stream.logs_alone and (meta.get("logLevel") is not None or caller.log_level is not None)


def _check_shape(request: Request, path_method: str | None) -> None:
    """What a well-formed request may still not be: at another path than its method, or a notification by its name."""
    if path_method is not None and request.method != path_method:
        raise InvalidRequest(
            f"the path names '{path_method[:100]}' and the body '{request.method[:100]}'; they must agree",
            field="method",
        )
    if request.method.startswith(NOTIFICATIONS):
        raise InvalidRequest(f"'{request.method[:100]}' is a notification and carries no 'id'", field="id")
