"""The RCP methods of the federation: whether each is offered (-32004, -32003), and the function that answers it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from app.api.admission import RETRY_AFTER_MS
from app.api.caller import Caller
from app.api.gateway_state import GatewayState
from app.federation.answer_cache import enabled
from app.federation.broadcast import BroadcastContext
from app.federation.calls import MethodCall, RetrieveCall
from app.federation.capabilities import EVERY_EXTENSION, catalog_entries, info
from app.federation.direct import MEMORIES
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import WRITING, Members
from app.federation.methods import index as indexing
from app.federation.methods.embed import embed
from app.federation.methods.extension import extend
from app.federation.methods.feedback import feedback
from app.federation.methods.graph import graph
from app.federation.methods.memory import memory_build, memory_recall
from app.federation.methods.rerank import rerank
from app.federation.methods.transform import transform
from app.federation.pagination import Pages
from app.federation.progress import ProgressListener
from app.federation.request_options import requested_engines
from app.federation.retrieve import RetrieveAnswer, retrieve
from app.federation.sessions import scoped, scoped_key
from app.protocol.envelope import check_params
from app.protocol.errors import (
    BackendUnavailable,
    CapabilityMissing,
    GatewayBusy,
    InvalidParams,
    StateUnreachable,
    UnknownMethod,
    VersionMismatch,
)
from app.protocol.method_names import PROTOCOL_VERSION, gate_of
from app.protocol.retrieve_params import CallMeta, read_gateway, read_meta, read_retrieve
from app.resilience.byte_budget import HELD, BudgetExhausted
from app.resilience.deadline import RESERVE_SHARE
from app.settings.schema import GatewaySettings
from app.telemetry.logs import logger

Params = dict[str, Any]
Held = TypeVar("Held")
Answer = Callable[[Params, Caller], Awaitable[Params]]
"""(params, caller) -> result. Raises RcpError."""


class StreamedAnswer(Protocol):
    """An Answer that can send progress to a listener."""

    def __call__(self, params: Params, caller: Caller, stream: ProgressListener | None = None) -> Awaitable[Params]: ...


FederatedAnswer = Callable[[MethodCall, Members, GatewaySettings, RetrieveInstrumentation], Coroutine[Any, Any, Params]]
"""Answers a method other than `retrieve` with one engine."""

FEDERATED: Mapping[str, FederatedAnswer] = MappingProxyType(
    {
        "embed": embed,
        "embed/sparse": embed,
        "embed/multi": embed,
        "rerank": rerank,
        "memory/build": memory_build,
        "query/transform": transform,
        "index/add": indexing.add,
        "index/delete": indexing.delete,
    }
)
"""The methods that are answered by one engine."""

BroadcastAnswer = Callable[[BroadcastContext, Pages], Coroutine[Any, Any, Params]]
"""Answers a method with several engines."""

BROADCAST: Mapping[str, BroadcastAnswer] = MappingProxyType(
    {"graph": graph, "memory/recall": memory_recall, "feedback": feedback}
)
"""The methods that are sent to several engines, besides `retrieve`."""

STREAMED = frozenset({"graph", "memory/recall"})
"""The methods of BROADCAST that send progress."""

CallContext = tuple[CallMeta, float, float, str, int, Params]
"""The first fields of MethodCall and RetrieveCall after the params, in their order."""

WRITTEN = frozenset({"index/add", "index/delete"})
"""The methods whose results are stored under an `idempotencyKey`."""

OWN_META = frozenset({"deadlineMs", "federation", "logLevel", "progressToken", "session"})
"""Keys of `_meta` that the gateway handles itself; all others are forwarded to engines."""

ANSWERED = frozenset(
    {"initialize", "info", "ping", "shutdown", "catalog/list", "retrieve", *FEDERATED, *BROADCAST, EVERY_EXTENSION}
)
"""The methods with metric series of their own. Vendor extensions share one, all other names another."""


class RpcMethods:
    """Answers the methods of one gateway, for the federation of all engines."""

    def __init__(self, state: GatewayState, lag: Callable[[], float] = lambda: 0.0) -> None:
        """`lag`: current delay of the event loop in seconds, which adds to the time that an answer takes."""
        self._state = state
        self._lag = lag
        self._warned = False
        self._by_name: dict[str, Answer] = {
            "initialize": self._initialize,
            "info": self._info,
            "ping": self._ping,
            "shutdown": self._shutdown,
            "catalog/list": self._catalog,
            "retrieve": self._retrieve,
            **{method: self._forwarding(method, answer) for method, answer in FEDERATED.items()},
        }
        broadcasting = {method: self._broadcasting(method, answer) for method, answer in BROADCAST.items()}
        self._by_name |= broadcasting
        self.streamed: Mapping[str, StreamedAnswer] = {
            "retrieve": self._retrieve,
            **{method: broadcasting[method] for method in STREAMED},
        }
        """The methods that can send progress."""

    def of(self, method: str) -> Answer:
        """The function that answers `method`. Raises UnknownMethod (-32004) and CapabilityMissing (-32003)."""
        answer = self._by_name.get(method)
        if answer is not None:
            return answer
        if gate_of(method) is None:
            raise UnknownMethod(f"'{method[:100]}' is not an RCP method")
        if not method.startswith("x-"):
            raise CapabilityMissing(f"this gateway does not answer '{method}'")
        return self._forwarding(method, extend)

    def _members(self, caller: Caller) -> Members:
        """The engines that the caller sees: in a session, those with which it began (RCP §13.2)."""
        membership = self._state.membership
        if caller.session_engines is None:
            return membership.current(caller.tenant)
        return membership.of_session(caller.tenant, caller.session_engines)

    def _forwarding(self, method: str, answer: FederatedAnswer) -> Answer:
        """An Answer that checks the gate and then sends the request to one engine."""

        async def answer_forwarded(params: Params, caller: Caller) -> Params:
            state = self._state
            members = self._members(caller)
            # Before the params are checked (RCP §12).
            _check_gate(method, members, state.settings, caller)
            # Sessions of different tenants must not meet at an engine, so they get names of their own.
            if caller.tenant is not None and type(params.get("sessionId")) is str:
                params = {**params, "sessionId": scoped(members.identity, params["sessionId"], caller.tenant)}
            call = await self.method_call(method, params, caller)

            async def asked() -> Params:
                return await self._within_byte_budget(
                    call.deadline, answer(call, members, state.settings, state.instrumentation)
                )

            if method not in WRITTEN:
                return await asked()
            try:
                return await state.idempotency.once(call, asked)
            finally:
                # Even a failed call may have changed a part of the index.
                writable = [
                    offer.id for offer in members.offers if offer.advertisement and offer.advertisement.offers("index")
                ]
                await state.answers.purge(*[f"engine:{engine}" for engine in writable])

        return answer_forwarded

    def _broadcasting(self, method: str, answer: BroadcastAnswer) -> StreamedAnswer:
        """An Answer that checks the gate and then sends the request to several engines."""

        async def answer_broadcast(params: Params, caller: Caller, stream: ProgressListener | None = None) -> Params:
            state = self._state
            members = self._members(caller)
            _check_gate(method, members, state.settings, caller)
            call = await self.method_call(method, params, caller)
            pages = state.pages if caller.tenant is None else state.pages.for_tenant(caller.tenant)
            context = BroadcastContext(
                call, members, state.settings, state.instrumentation, stream, state.selector, state.shadows
            )
            result = await self._within_byte_budget(call.deadline, answer(context, pages))
            if method == "feedback" and _reports_poison(params):
                await state.answers.purge("*" if caller.tenant is None else f"tenant:{caller.tenant.id}")
            return result

        return answer_broadcast

    async def method_call(self, method: str, params: Params, caller: Caller) -> MethodCall:
        """The call of a method other than `retrieve`. Raises InvalidParams, BackendUnavailable."""
        call_context = self.call_context(params, caller)
        secret = b""
        if caller.tenant is not None and method in MEMORIES:
            secret = await self._secret()
        return MethodCall(params, *call_context, method=method, tenant=caller.tenant, secret=secret, caller=caller.name)

    async def _secret(self) -> bytes:
        """The key from which names of memories are derived. Raises BackendUnavailable while it cannot be read."""
        state = self._state
        configured = state.settings.auth.secret
        if configured is None and state.secret.temporary and not self._warned:
            self._warned = True
            logger().warning(
                "memory_names_temporary", remedy="set auth.secret, or memories are lost when this process ends"
            )
        try:
            return await state.secret.key(configured)
        except StateUnreachable:
            raise BackendUnavailable(
                "memories are unavailable, because the shared state cannot be reached", retryable=True
            ) from None

    def call_context(self, params: Params, caller: Caller) -> CallContext:
        """The fields of a call that are common to all methods.

        Raises InvalidParams for unusable params and for a malformed `_meta`.
        """
        check_params(params)
        settings = self._state.settings
        started = asyncio.get_running_loop().time() if caller.since is None else caller.since
        sent = params.get("_meta")
        meta = read_meta(sent)
        # A request can override the log level of its session (RCP §17.1).
        if meta.log_level is None and caller.log_level is not None:
            meta = replace(meta, log_level=caller.log_level)
        # A caller can shorten the deadline of the settings, and not extend it.
        most = settings.retrieve.deadline_ms
        deadline_ms = most if meta.deadline_ms is None else min(meta.deadline_ms, most)
        passed_on = {key: value for key, value in sent.items() if key not in OWN_META} if sent else {}
        if caller.trace is not None and passed_on.get("traceId") is None:
            passed_on["traceId"] = caller.trace.id
        if caller.sent_id and passed_on.get("requestId") is None:
            passed_on["requestId"] = caller.sent_id
        # Engines must not mix up the keys of different tenants.
        key = passed_on.get("idempotencyKey")
        if caller.tenant is not None and type(key) is str and key:
            passed_on["idempotencyKey"] = scoped_key(key, caller.tenant)
        # The delay of the loop is subtracted like the reserve for fusion, so that no answer is late.
        seconds = deadline_ms / 1000 - min(self._lag(), deadline_ms / 1000 * RESERVE_SHARE)
        return meta, started, started + seconds, caller.request_id, settings.federation.depth, passed_on

    async def _initialize(self, params: Params, caller: Caller) -> Params:
        return self._described(negotiated(params), caller)

    async def _info(self, params: Params, caller: Caller) -> Params:
        return self._described(PROTOCOL_VERSION, caller)

    def _described(self, version: int, caller: Caller) -> Params:
        state = self._state
        members = self._members(caller)
        return info(
            protocol_version=version,
            name=state.settings.server.name,
            version=state.version,
            capabilities=members.capabilities,
            gateway={"id": members.identity, "epoch": members.epoch},
        )

    async def _ping(self, params: Params, caller: Caller) -> Params:
        nonce = params.get("nonce")
        return {} if nonce is None else {"nonce": nonce}

    async def _shutdown(self, params: Params, caller: Caller) -> Params:
        return {}  # it ends the session of the caller, which the handshake policy does, and never the gateway

    async def _catalog(self, params: Params, caller: Caller) -> Params:
        check_params(params)
        members = self._members(caller)
        named = requested_engines(read_gateway(params.get("x-gateway")), members)
        offers = [offer for offer in members.offers if named is None or offer.id in named]
        discovered = frozenset().union(*members.groups.values())
        return {"engines": catalog_entries(offers, self._state.settings.server.public_url, discovered)}

    async def _retrieve(self, params: Params, caller: Caller, stream: ProgressListener | None = None) -> Params:
        state = self._state
        members = self._members(caller)
        # While handshakes are missing, `retrieve` may still become available, and fails as unavailable instead.
        if "retrieve" not in members.capabilities and len(members.offers) == len(members.engines):
            _check_session_engines(members, caller)
            raise CapabilityMissing("no engine behind this gateway offers 'retrieve'")
        call = self.retrieve_call(params, caller)

        shadows = state.shadows if state.engines.shadows else None

        async def ask(call: RetrieveCall) -> RetrieveAnswer:
            answer = retrieve(
                call, members, state.settings, state.instrumentation, stream, state.pages, state.selector, shadows
            )
            return await self._within_byte_budget(call.deadline, answer)

        if not enabled(call, state.settings):
            return (await ask(call)).result
        return await state.answers.answer(call, members, state.settings, state.pages, ask, streamed=stream is not None)

    async def _within_byte_budget(self, deadline: float, answer: Coroutine[Any, Any, Held]) -> Held:
        """The result of `answer`, within `engines.max_held_bytes` for responses in memory. Raises GatewayBusy."""
        budget = self._state.answer_bytes
        holder = budget.try_enter()
        if holder is None:
            try:
                holder = await budget.enter(deadline)
            except BudgetExhausted:
                self._state.metrics.server.refused("memory")
                message = "the gateway has reached its limit of memory for engine responses"
                raise GatewayBusy(message, retryable=True, retryAfterMs=RETRY_AFTER_MS) from None
            finally:
                if holder is None:
                    # A coroutine that is never awaited would warn.
                    answer.close()
        before = HELD.set(holder)
        try:
            return await answer
        finally:
            HELD.reset(before)
            holder.release()

    def retrieve_call(self, params: Params, caller: Caller) -> RetrieveCall:
        """The call of a `retrieve` with these params. Raises InvalidParams, OptionUnsupported."""
        call_context = self.call_context(params, caller)
        screened = self._state.settings.screen.injection != "off"
        return RetrieveCall(read_retrieve(params), *call_context, tenant=caller.tenant, screened=screened)

    def __repr__(self) -> str:
        return f"<RpcMethods, {len(self._by_name)} methods>"


def _reports_poison(params: Params) -> bool:
    """Whether the screen may judge hits in another way from now on."""
    return any(signal.get("poisonSuspected") for signal in params["signals"])


def deadline_seconds(params: Any, settings: GatewaySettings) -> float:
    """The deadline in seconds of a request whose params are not checked yet: a malformed `_meta` is ignored."""
    meta = params.get("_meta") if type(params) is dict else None
    asked = meta.get("deadlineMs") if type(meta) is dict else None
    most = settings.retrieve.deadline_ms
    return (min(asked, most) if type(asked) is int and asked >= 1 else most) / 1000


def negotiated(params: Params) -> int:
    """The common protocol version (RCP §7.1). Raises InvalidParams, and VersionMismatch (-32002) without one."""
    theirs = params.get("protocolVersion")
    if theirs is None:
        theirs = PROTOCOL_VERSION
    if type(theirs) is not int:
        raise InvalidParams("'protocolVersion' must be an integer of at least 1", field="protocolVersion")
    if theirs < 1:
        raise VersionMismatch(f"this gateway supports protocol versions 1 to {PROTOCOL_VERSION}")
    # A newer client is answered in our version, and decides itself whether to go on.
    return min(theirs, PROTOCOL_VERSION)


def _check_session_engines(members: Members, caller: Caller) -> None:
    """Raises BackendUnavailable (-32010) for a session that began before any engine had been reached."""
    if caller.session_engines is not None and not members.offers:
        raise BackendUnavailable(
            "no engine had been reached when this session began; start a new session", retryable=False
        )


def _check_gate(method: str, members: Members, settings: GatewaySettings, caller: Caller) -> None:
    """Raises CapabilityMissing if `method` is not offered, BackendUnavailable before any engine was reached."""
    capability = gate_of(method)
    assert capability is not None, "only gated methods are sent to engines"
    if capability in members.capabilities:
        return
    if capability in WRITING and not settings.index.enabled:
        raise CapabilityMissing(f"'{method}' is disabled; set index.enabled to true")
    _check_session_engines(members, caller)
    if members.engines and not members.offers:
        raise BackendUnavailable("no engine has been reached yet", retryable=True)
    raise CapabilityMissing(f"no engine behind this gateway offers '{capability[:100]}'")
