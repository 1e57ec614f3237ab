"""The RCP methods of a single engine, at `/engines/{id}/rcp`: forwarded as they are, without fusion.

The engine's own advertisement applies, except for capabilities that the gateway or the tenant does not allow.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.api.caller import Caller
from app.api.gateway_state import GatewayState
from app.api.methods import WRITTEN, Params, negotiated
from app.engines.engine import RemoteEngine
from app.federation.calls import MethodCall
from app.federation.direct import ask_single_engine
from app.federation.membership import WRITING
from app.federation.progress import ProgressListener
from app.federation.tenants import Tenant
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BackendUnavailable, CapabilityMissing, NotFound, UnknownMethod
from app.protocol.method_names import PROTOCOL_VERSION, gate_of

LOWEST_LEVEL = "L0"
"""The conformance level of an engine that does not state one (RCP §14)."""

NOT_RELAYED = frozenset({"log"})
"""Capabilities that are removed: an engine cannot send log lines to the gateway's caller."""


class SingleEngineMethods:
    """Answers the methods of one gateway, for each engine by itself."""

    def __init__(self, state: GatewayState, call: Callable[[str, Params, Caller], Awaitable[MethodCall]]) -> None:
        """`call`: RpcMethods.method_call."""
        self._state = state
        self._call = call

    def engine(self, engine_id: str, tenant: Tenant | None = None) -> RemoteEngine:
        """The engine of this id, if it is visible to the tenant. Raises NotFound (-32015)."""
        if tenant is None or self._state.membership.sees(tenant, engine_id):
            for engine in self._state.engines.engines:
                if engine.id == engine_id and engine.entry.shadow is None:
                    return engine
        raise NotFound(f"there is no engine '{engine_id[:128]}'")

    async def answer(
        self, method: str, params: Params, caller: Caller, stream: ProgressListener | None = None
    ) -> Params:
        """The result of `method` at the engine that the caller addresses. Raises RcpError."""
        engine = self.engine(caller.engine or "", caller.tenant)
        # Even `ping` fails, so that a caller does not take the engine for available.
        if engine.id in self._state.engines.switched_off:
            raise BackendUnavailable(f"engine '{engine.id}' is switched off by an operator", retryable=False)
        if method == "initialize":
            return self._initialize(engine, params, caller)
        if method == "info":
            return self._described(engine, _session_advertisement(engine, caller), PROTOCOL_VERSION, caller)
        if method == "ping":
            return _pong(engine, params)
        if method == "shutdown":
            return {}  # it ends the session of the caller, if it has one, and never the engine
        self._check_gate(method, engine, caller)
        call = await self._call(method, params, caller)
        if stream is not None:
            stream.open()
        state = self._state
        members = state.membership.current(caller.tenant)

        async def asked() -> Params:
            return await ask_single_engine(call, engine, members, state.settings, state.instrumentation)

        # Keys are separate for each engine: the same key may be used at another one.
        return await state.idempotency.once(call, asked, engine.id) if method in WRITTEN else await asked()

    def _initialize(self, engine: RemoteEngine, params: Params, caller: Caller) -> Params:
        """Describe the engine. Fails while it is down, so that clients which try several servers skip it."""
        version = negotiated(params)
        if not engine.up:
            raise _down(engine)
        return self._described(engine, _advertisement(engine), version, caller)

    def _described(self, engine: RemoteEngine, advertisement: Advertisement, version: int, caller: Caller) -> Params:
        gateway = {"id": advertisement.gateway_id or self._state.membership.current().identity, "engine": engine.id}
        return {
            "protocolVersion": version,
            "server": dict(advertisement.server),
            "capabilities": self._capabilities(advertisement, caller),
            "_meta": {"conformance": advertisement.conformance or LOWEST_LEVEL, "x-gateway": gateway},
        }

    def _check_gate(self, method: str, engine: RemoteEngine, caller: Caller) -> None:
        """Raises UnknownMethod (-32004), CapabilityMissing (-32003)."""
        capability = gate_of(method)
        if capability is None:
            raise UnknownMethod(f"'{method[:100]}' is not an RCP method")
        if capability not in self._capabilities(_session_advertisement(engine, caller), caller):
            raise CapabilityMissing(f"engine '{engine.id}' does not offer '{capability[:100]}' here")
        # Offered when the session began, but no longer: an error of availability, not of the caller.
        if capability not in self._capabilities(_advertisement(engine), caller):
            raise BackendUnavailable(f"engine '{engine.id}' no longer offers '{capability[:100]}'", retryable=False)

    def _capabilities(self, advertisement: Advertisement, caller: Caller) -> Mapping[str, Any]:
        """The advertised capabilities, except for those that the gateway or the tenant does not allow."""
        hidden = NOT_RELAYED if self._state.settings.index.enabled else NOT_RELAYED | WRITING
        tenant = caller.tenant
        return {
            key: value
            for key, value in advertisement.capabilities.items()
            if advertisement.offers(key) and key not in hidden and (tenant is None or tenant.may_use(key))
        }

    def __repr__(self) -> str:
        return f"<SingleEngineMethods of {len(self._state.engines.engines)} engines>"


def _pong(engine: RemoteEngine, params: Params) -> Params:
    if not engine.up:
        raise _down(engine)
    nonce = params.get("nonce")
    return {} if nonce is None else {"nonce": nonce}


def _advertisement(engine: RemoteEngine) -> Advertisement:
    """The latest advertisement of the engine. Raises BackendUnavailable (-32010) before its first handshake."""
    if engine.advertisement is None:
        raise _down(engine)
    return engine.advertisement


def _session_advertisement(engine: RemoteEngine, caller: Caller) -> Advertisement:
    """The advertisement with which the caller's session began (RCP §13.2); outside of sessions, the latest one.

    Raises BackendUnavailable (-32010) before the engine's first handshake.
    """
    at_start = None if caller.session_engines is None else caller.session_engines.advertisement(engine.id)
    return at_start or _advertisement(engine)


def _down(engine: RemoteEngine) -> BackendUnavailable:
    return BackendUnavailable(f"engine '{engine.id}' is down", retryable=True, detail=engine.down_reason)
