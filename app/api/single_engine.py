"""Method name -> answer at the endpoint of one engine, `/engines/{id}/rcp`: the engine as it is, through this gateway.

It decides what of the engine's advertisement holds here, and when the engine is said to be down. It refuses to know
framing, and how an engine is asked.
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
"""What is stated for an engine that states no level itself (RCP §14)."""

NOT_RELAYED = frozenset({"log"})
"""Capabilities of an engine that do not reach through: it has no way to write to our caller's log."""


class SingleEngineMethods:
    """The answers of every engine of one gateway, each by itself."""

    def __init__(self, state: GatewayState, call: Callable[[str, Params, Caller], Awaitable[MethodCall]]) -> None:
        """`call` makes the Call of a method."""
        self._state = state
        self._call = call

    def engine(self, engine_id: str, tenant: Tenant | None = None) -> RemoteEngine:
        """The engine of this id, if this tenant sees it. Raises NotFound (-32015)."""
        if tenant is None or self._state.membership.sees(tenant, engine_id):
            for engine in self._state.engines.engines:
                if engine.id == engine_id:
                    return engine
        raise NotFound(f"no engine '{engine_id[:128]}' is behind this gateway")

    async def answer(
        self, method: str, params: Params, caller: Caller, stream: ProgressListener | None = None
    ) -> Params:
        """The result of `method` at the engine that the caller speaks to. Raises RcpError."""
        engine = self.engine(caller.engine or "", caller.tenant)
        if engine.id in self._state.engines.switched_off:
            raise BackendUnavailable(f"engine '{engine.id}' is switched off by its operator", retryable=False)
        if method == "initialize":
            return self._initialize(engine, params, caller)
        if method == "info":
            return self._described(engine, _then(engine, caller), PROTOCOL_VERSION, caller)
        if method == "ping":
            return _pong(engine, params)
        if method == "shutdown":
            return {}  # the caller's session, if it has one; never the engine
        self._check_gate(method, engine, caller)
        call = await self._call(method, params, caller)
        if stream is not None:
            stream.open()
        state = self._state
        members = state.membership.current(caller.tenant)

        async def asked() -> Params:
            return await ask_single_engine(call, engine, members, state.settings, state.instrumentation)

        return await state.idempotency.once(call, asked, engine.id) if method in WRITTEN else await asked()

    def _initialize(self, engine: RemoteEngine, params: Params, caller: Caller) -> Params:
        """As a server that is not there cannot be initialized, so whoever picks one by who answers goes on."""
        version = negotiated(params)
        if not engine.up:
            raise _down(engine)
        return self._described(engine, _known(engine), version, caller)

    def _described(self, engine: RemoteEngine, said: Advertisement, version: int, caller: Caller) -> Params:
        gateway = {"id": said.gateway_id or self._state.membership.current().identity, "engine": engine.id}
        return {
            "protocolVersion": version,
            "server": dict(said.server),
            "capabilities": self._capabilities(said, caller),
            "_meta": {"conformance": said.conformance or LOWEST_LEVEL, "x-gateway": gateway},
        }

    def _check_gate(self, method: str, engine: RemoteEngine, caller: Caller) -> None:
        """Raises UnknownMethod (-32004), CapabilityMissing (-32003)."""
        capability = gate_of(method)
        if capability is None:
            raise UnknownMethod(f"'{method[:100]}' is not a method of RCP")
        if capability not in self._capabilities(_then(engine, caller), caller):
            raise CapabilityMissing(f"engine '{engine.id}' does not offer '{capability[:100]}' here")
        if capability not in self._capabilities(_known(engine), caller):
            raise BackendUnavailable(
                f"engine '{engine.id}' does not offer '{capability[:100]}' any more", retryable=False
            )

    def _capabilities(self, said: Advertisement, caller: Caller) -> Mapping[str, Any]:
        """Its own advertisement without what the gateway does not let through, or not to this caller."""
        hidden = NOT_RELAYED if self._state.settings.index.enabled else NOT_RELAYED | WRITING
        tenant = caller.tenant
        return {
            key: value
            for key, value in said.capabilities.items()
            if said.offers(key) and key not in hidden and (tenant is None or tenant.may_use(key))
        }

    def __repr__(self) -> str:
        return f"<SingleEngineMethods of {len(self._state.engines.engines)} engines>"


def _pong(engine: RemoteEngine, params: Params) -> Params:
    if not engine.up:
        raise _down(engine)
    nonce = params.get("nonce")
    return {} if nonce is None else {"nonce": nonce}


def _known(engine: RemoteEngine) -> Advertisement:
    """What it last advertised. Raises BackendUnavailable (-32010) before its first handshake."""
    if engine.advertisement is None:
        raise _down(engine)
    return engine.advertisement


def _then(engine: RemoteEngine, caller: Caller) -> Advertisement:
    """What it advertised when the caller's session began (RCP §13.2); outside of sessions, what it advertises now.

    Raises BackendUnavailable (-32010) before its first handshake.
    """
    then = None if caller.begun is None else caller.begun.advertisement(engine.id)
    return then or _known(engine)


def _down(engine: RemoteEngine) -> BackendUnavailable:
    return BackendUnavailable(f"engine '{engine.id}' is down", retryable=True, detail=engine.down_reason)
