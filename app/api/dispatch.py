"""Dispatches JSON-RPC messages to methods. HTTP, stdio and MCP all pass through `Dispatcher._execute`.

Checks happen in the order of RCP §12: malformed message (-32600), missing handshake (-32001), unknown method (-32004),
method not offered (-32003), then params (-32602) and options (-32005).
"""

import asyncio
from collections.abc import Mapping
from time import perf_counter, time
from typing import Any, NamedTuple

from app.api.audit_log import AuditLog, known
from app.api.auth.principal import AuthError
from app.api.caller import Caller
from app.api.gateway_state import GatewayState, PartialAnswer
from app.api.load_shedding import LoadShedder
from app.api.methods import RpcMethods
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
    GatewayBusy,
    InternalError,
    InvalidParams,
    InvalidRequest,
    RcpError,
)
from app.protocol.method_names import UNGATED
from app.state.rate_limit import Reservation
from app.telemetry.logs import logger
from app.telemetry.tracing import OUTGOING, REQUEST_ID, Span, enter

NOTIFICATIONS = "notifications/"

METHODS_WITH_HITS = frozenset({"retrieve", "graph", "memory/recall"})
"""Methods that count against `limits.hits_per_day`."""

DEFAULT_HITS = 10
"""Hits of an answer if the request does not contain `k` (RCP §7.7)."""

RESERVED_SECONDS = 5.0
"""Seconds after the deadline at which reserved hits are given back, if the gateway dies during the request."""

SUCCESSFUL = ("ok", "degraded")
"""Outcomes of requests that got a result."""


class BusyResponse(bytes):
    """The response to a request that the gateway has no capacity for. HTTP sends it with 503 and `Retry-After`."""

    __slots__ = ()


class _Outcome(NamedTuple):
    """The outcome of one request."""

    body: bytes
    """The response as JSON; empty if the caller of `_execute` needs the result only."""
    result: dict[str, Any]
    error: RcpError | None


class Dispatcher:
    """Answers messages and batches of one gateway."""

    def __init__(self, state: GatewayState, handshake: HandshakePolicy | None = None) -> None:
        """`handshake`: the policy of the transport; by default that of the settings for HTTP."""
        self._state = state
        self._handshake = handshake or http_handshake(state.settings, state.offers, state.backend)
        self._log = logger()
        self._in_flight = RunningRequests()
        self._load = LoadShedder(state)
        self._methods = RpcMethods(state, lambda: self._load.lag)
        self._single_engine = SingleEngineMethods(state, self._methods.method_call)

    async def message(
        self,
        message: Any,
        caller: Caller,
        path_method: str | None,
        stream: StreamProgressListener | None = None,
    ) -> bytes | None:
        """The response to one parsed message; None for a notification.

        `path_method`: the method in the URL. `stream` is opened if the request asks for progress and there is some; the
        response is then its last frame.
        """
        try:
            request = envelope.read_request(message)
            if request.notification or (request.id is None and request.method.startswith(NOTIFICATIONS)):
                if request.method == envelope.CANCEL and path_method in (None, envelope.CANCEL):
                    self._cancel(request.params, caller)
                return None
            _check_shape(request, path_method)
        except InvalidRequest as fault:
            # 200: errors of single messages are JSON-RPC responses (RCP §5.2).
            return self.refused(fault, caller.request_id, 200, envelope.recover_id(message))
        if stream is not None and not self._may_notify(request, caller, stream):
            stream = None
        return await self.respond(request, caller, stream)

    async def batch(self, messages: list[Any], caller: Caller, path_method: str | None) -> bytes | None:
        """The responses to a batch (RCP §11), whose members run concurrently; None if all are notifications."""
        if not messages:
            return self.refused(InvalidRequest("a batch must contain at least one message"), caller.request_id, 200)
        most = self._state.settings.server.max_batch
        if len(messages) > most:
            fault = InvalidParams(f"a batch may contain at most {most} messages", field="batch")
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
        """The response to one request, as JSON. Every failure becomes an error response."""
        outcome = await self._execute(request, caller, self._handshake, stream)
        return BusyResponse(outcome.body) if isinstance(outcome.error, GatewayBusy) else outcome.body

    async def ask(
        self, method: str, params: dict[str, Any], caller: Caller, listener: ProgressListener | None = None
    ) -> dict[str, Any]:
        """The result of one request of another protocol, such as MCP. Raises RcpError."""
        # No handshake policy: that protocol has a handshake of its own.
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
        """Answer, count, log and trace one request. Raises CancelledError only."""
        started = perf_counter() - _waited(caller)
        self._state.metrics.requests_in_flight.inc()
        audit = AuditLog()
        reservation: Reservation | None = None
        error: RcpError | None = None
        body, result = b"", dict[str, Any]()
        span, caller = self._traced(request, caller)
        running = self._register(request, caller, stream)
        try:
            await self._begin(request.method, request.params, caller)
            if handshake is not None:
                caller = await handshake.before(request.method, caller)
            params = simplest_params(request.method, request.params)
            if request.method in UNGATED:
                envelope.check_params(params)  # of other methods after the check whether they are offered (RCP §12)
            if stream is not None and not _wants_notifications(request, caller, stream):
                stream = None
            reservation = await self._reserve_hits(request.method, params, caller)
            # A stream gets progress only on request, a listener always.
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
                raise  # the caller has disconnected; only `notifications/cancel` is answered
            audit.code = Cancelled.code
            error = Cancelled("cancelled by the caller")
        except Exception:  # noqa: BLE001 - the edge of a request: every fault becomes an error response
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

    def _register(
        self, request: Request, caller: Caller, stream: StreamProgressListener | None
    ) -> RunningRequest | None:
        """Register the request for `notifications/cancel`; None if the caller has no session and no stream."""
        scope = caller.cancel_scope
        if scope is None and stream is not None:
            scope = caller.stream_scope
        return None if scope is None or request.id is None else self._in_flight.enter(scope, request.id)

    async def _answer(
        self, method: str, params: dict[str, Any], caller: Caller, listener: ProgressListener | None
    ) -> dict[str, Any]:
        """The result of the federation, or of the addressed engine. Raises RcpError."""
        if caller.engine is not None:
            return await self._single_engine.answer(method, params, caller, listener)
        if listener is None:
            return await self._methods.of(method)(params, caller)
        return await self._methods.streamed[method](params, caller, listener)

    async def _begin(self, method: str, params: Any, caller: Caller) -> None:
        """Wait until the request can begin, and check that the caller may send it. Raises RcpError."""
        await self._load.begin(method, params, caller)
        # Members of a batch are checked here one by one; a single HTTP request has been checked before.
        if caller.tenant is not None:
            caller.tenant.check(method)

    async def _release_hits(self, reservation: Reservation | None, hits: int, caller: Caller) -> None:
        """Give back the reserved hits that the answer did not contain."""
        if reservation is not None and self._state.authenticator is not None:
            await self._state.authenticator.release_hits(caller, reservation, hits)

    async def _reserve_hits(self, method: str, params: Any, caller: Caller) -> Reservation | None:
        """Reserve the hits that the answer may contain, if the caller's are limited. Raises RateLimited."""
        authenticator, settings = self._state.authenticator, self._state.settings
        if authenticator is None or caller.tenant is None or method in UNGATED:
            return None
        seconds = settings.retrieve.deadline_ms / 1000 + RESERVED_SECONDS
        return await authenticator.reserve_hits(caller, most_hits(method, params, settings.retrieve.max_k), seconds)

    def knows(self, engine_id: str, tenant: Tenant | None = None) -> bool:
        """Whether this engine exists and is visible to the tenant."""
        if tenant is not None and not self._state.membership.sees(tenant, engine_id):
            return False
        return any(engine.id == engine_id and engine.entry.shadow is None for engine in self._state.engines.engines)

    def _reported(self, request: Request, caller: Caller, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result with its engine report in the form of `x-gateway.report`, else of `retrieve.report`."""
        # Ungated methods have no report, and a report of a single engine is its own.
        if request.method in UNGATED or caller.engine is not None:
            return result
        options = request.params.get("x-gateway")
        form = options.get("report") if type(options) is dict else None
        return shortened(result, form or self._state.settings.retrieve.report)

    def _traced(self, request: Request, caller: Caller) -> tuple[Span | None, Caller]:
        """The span of a request, if tracing is on; otherwise engines get the trace context of the caller."""
        REQUEST_ID.set(caller.sent_id)
        tracing = self._state.instrumentation.tracing
        if tracing is None:
            # Set even to None: the context may still contain the value of an earlier request.
            OUTGOING.set(caller.trace)
            return None, caller
        meta = request.params.get("_meta")
        trace_id = meta.get("traceId") if type(meta) is dict else None
        span = tracing.serve(known(request.method), caller.request_id, caller.trace, trace_id)
        enter(span)
        return span, caller._replace(trace=span.trace)

    def _record(
        self, span: Span | None, request: Request, caller: Caller, audit: AuditLog, took: float, size: int | None
    ) -> None:
        """Trace, count and log a finished request; `took` in seconds."""
        if span is not None:
            span.end(audit.outcome, well=audit.outcome in SUCCESSFUL, **audit.attributes())
        metrics = self._state.metrics
        if audit.outcome in SUCCESSFUL:
            self._state.admission.completed()
        metrics.requests_in_flight.dec()
        trace = caller.trace.id if caller.trace is not None and caller.trace.sampled else None
        metrics.request(known(request.method), audit.outcome, took, trace)
        if audit.outcome == "degraded":
            metrics.answers.degraded(audit.reasons())
            missing = PartialAnswer(time(), caller.request_id, known(request.method), audit.missing)
            self._state.partial_answers.append(missing)
        if audit.code is not None:
            metrics.error(audit.code)
        if caller.tenant is not None:
            metrics.callers.request(caller.tenant.id, audit.outcome)
        bodies = self._state.settings.log.bodies
        self._log.info("request", **audit.line(request, caller, took, size, bodies=bodies))

    def refused(self, fault: RcpError, request_id: str, status: int | None, message_id: RequestId = None) -> bytes:
        """The response to a message that is refused before it is a request; counted and logged. `status`: HTTP's."""
        self._state.metrics.error(fault.code)
        self._log.info("refused", request_id=request_id, status=status, code=fault.code, detail=fault.message)
        return envelope.failure(message_id, fault)

    def refused_caller(self, error: AuthError, request_id: str, message_id: RequestId) -> bytes:
        """The response to a caller that is not authenticated or not authorized; counted, and logged unless quiet."""
        fault = error.fault
        self._state.metrics.error(fault.code)
        if not error.quiet:
            who = (
                {} if error.principal is None else {"tenant": error.principal.tenant.id, "key": error.principal.key_id}
            )
            line = {"request_id": request_id, **who, "status": error.status, "code": fault.code}
            self._log.info("refused", **line, detail=fault.message)
        return envelope.failure(message_id, fault)

    def _cancel(self, params: dict[str, Any], caller: Caller) -> None:
        """`notifications/cancel` (RCP §7): cancel the request of this id in the caller's session.

        A caller without session can cancel its own streams.
        """
        message_id = envelope.recover_id(params)
        if message_id is None:
            return
        if caller.cancel_scope is not None:
            self._in_flight.cancel(caller.cancel_scope, message_id)
        elif caller.stream_scope is not None:
            self._in_flight.cancel_only(caller.stream_scope, message_id)

    def _may_notify(self, request: Request, caller: Caller, stream: StreamProgressListener) -> bool:
        """Whether progress or log lines can be sent for this request (RCP §9)."""
        has_progress = (
            request.method in self._methods.streamed if caller.engine is None else request.method not in UNGATED
        )
        return has_progress and (stream.logs_alone or _wants_notifications(request, caller, stream))

    def __repr__(self) -> str:
        return f"<Dispatcher {self._methods!r}, {self._in_flight!r}, {self._state.readiness!r}>"


def most_hits(method: str, params: Any, max_k: int) -> int:
    """Most hits that the answer may contain, from params that are not checked yet; 0 for methods without hits."""
    if method not in METHODS_WITH_HITS:
        return 0
    asked = params.get("n" if method == "memory/recall" else "k") if type(params) is dict else None
    return min(asked if type(asked) is int and asked >= 1 else DEFAULT_HITS, max_k)


def _waited(caller: Caller) -> float:
    """Seconds since the arrival of the first bytes: the measured time of a request includes every queue."""
    # The clock of the event loop can be as coarse as a millisecond, so it measures this part of the time only.
    return 0.0 if caller.since is None else max(0.0, asyncio.get_running_loop().time() - caller.since)


def _wants_notifications(request: Request, caller: Caller, stream: StreamProgressListener) -> bool:
    """Whether the caller requests progress, or, if the transport can send it alone, a log (also by its session)."""
    meta = request.params.get("_meta") if type(request.params) is dict else None
    meta = meta if type(meta) is dict else {}
    if meta.get("progressToken") is not None:
        return True
    return stream.logs_alone and (meta.get("logLevel") is not None or caller.log_level is not None)


def _check_shape(request: Request, path_method: str | None) -> None:
    """Raises InvalidRequest for a method that differs from the path, and for a notification with an id."""
    if path_method is not None and request.method != path_method:
        raise InvalidRequest(
            f"the path names '{path_method[:100]}' and the body '{request.method[:100]}'; they must agree",
            field="method",
        )
    if request.method.startswith(NOTIFICATIONS):
        raise InvalidRequest(f"'{request.method[:100]}' is a notification and must not have an 'id'", field="id")
