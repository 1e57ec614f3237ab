"""What an operator can do to an engine: repeat its handshake, switch it off or on, reset its breaker, inject faults.

Every action, done or refused, is logged with the operator. It holds for this process until the process ends.
"""

import asyncio
from typing import Any

from app.api.gateway_state import GatewayState
from app.api.operator_access import Operator
from app.engines.engine import RemoteEngine
from app.engines.fault_injection import KINDS, FaultInjection
from app.federation.learned_maps import read_learned_maps
from app.protocol.errors import BackendUnavailable, InvalidParams, LegError, NotFound, RcpError, Unauthorized
from app.protocol.param_fields import refuse_value
from app.telemetry.logs import logger

MAX_DRILL_SECONDS = 600
"""Of one drill: it ends by itself."""

MAX_DELAY_MS = 60_000

ACTIONS = ("handshake", "off", "on", "reset", "drill", "end_drill", "reset_calibration", "load_calibration", "purge")


class AdminActions:
    """What operators have done to the engines of one gateway."""

    __slots__ = ("_log", "_state", "drills")

    def __init__(self, state: GatewayState) -> None:
        self.drills: dict[str, FaultInjection] = {}
        """Engine id -> its latest drill."""
        self._state = state
        self._log = logger()

    async def act(self, body: dict[str, Any], operator: Operator) -> str:
        """Do what was asked, and say in a few words what came of it. Raises RcpError."""
        action = body.get("action")
        if action not in ACTIONS:
            refuse_value("action", f"one of {', '.join(ACTIONS)}", action)
        tenant = None if operator.tenant is None else operator.tenant.id
        # A purge may concern all engines; every other action concerns one.
        engine = None if action == "purge" and body.get("engine") is None else self._engine(body.get("engine"))
        name = None if engine is None else engine.id
        line = {
            "action": action,
            "engine": name,
            "tenant": tenant,
            "key": operator.key,
            "address": operator.address,
        }
        try:
            said = await self._purge(name, body) if engine is None else await self._done(action, engine, body, tenant)
        except RcpError as fault:
            self._log.warning("admin_refused", **line, detail=fault.message)
            raise
        self._log.warning("admin_action", **line, said=said)
        return said

    async def _done(self, action: str, engine: RemoteEngine, body: dict[str, Any], tenant: str | None) -> str:
        if action == "handshake":
            return await self._handshake(engine)
        if action == "reset":
            engine.reset()
            return "the breaker is closed, and replicas are in use"
        if action in ("off", "on"):
            changed = self._state.engines.switch(engine.id, action == "on")
            return f"switched {action}" if changed else f"it was {action} already"
        if action in ("reset_calibration", "load_calibration"):
            return self._calibrate(action, engine.id, body, tenant)
        if action == "purge":
            return await self._purge(engine.id, body)
        # Answers from before a drill, or with its faults, would hide when it began or ended.
        await self._state.answers.purge(f"engine:{engine.id}")
        if action == "end_drill":
            return self._end_fault_injection(engine)
        return self._fault_injection(engine, body)

    async def _purge(self, engine: str | None, body: dict[str, Any]) -> str:
        """Forget cached answers: of one engine, of one tenant, or all."""
        tenant = body.get("tenant")
        if tenant is not None and (type(tenant) is not str or engine is not None):
            refuse_value("tenant", "the id of a tenant, without 'engine'", tenant)
        scope = f"engine:{engine}" if engine is not None else "*" if tenant is None else f"tenant:{tenant}"
        await self._state.answers.purge(scope)
        return "cached answers are forgotten" + ("" if scope == "*" else f": {scope}")

    def _calibrate(self, action: str, engine: str, body: dict[str, Any], own: str | None) -> str:
        """Forget what was learned of an engine, of one tenant or of all, or go on from what was learned elsewhere."""
        learning, fusion = self._state.pages.learning, self._state.settings.fusion
        tenant = body.get("tenant")
        if tenant is not None and type(tenant) is not str:
            refuse_value("tenant", "the id of a tenant", tenant)
        if action == "reset_calibration":
            found = learning.reset(engine, tenant)
            return f"what was learned of it is forgotten, in {found} scope(s)"
        maps = read_learned_maps(body.get("maps"))
        scope = "" if fusion.learning_scope == "gateway" else (tenant or own or "")
        for one in maps:
            learning.load(scope, engine, one.kind, one.sums, one.moments)
        return f"{len(maps)} map(s) loaded" + (f" for the tenant {scope}" if scope else "")

    async def _handshake(self, engine: RemoteEngine) -> str:
        deadline = asyncio.get_running_loop().time() + engine.entry.timeout_ms / 1000
        try:
            advertisement = await engine.handshake(deadline)
        except LegError as fault:
            message = f"the handshake failed: {fault.kind}: {fault.message}"
            raise BackendUnavailable(message, retryable=True) from None
        return f"it is {advertisement.server['name']} {advertisement.server['version']}"[:200]

    def _fault_injection(self, engine: RemoteEngine, body: dict[str, Any]) -> str:
        if not self._state.settings.admin.drills:
            raise Unauthorized("drills are switched off; set admin.drills to true")
        kind = body.get("kind")
        if kind not in KINDS:
            refuse_value("kind", f"one of {', '.join(KINDS)}", kind)
        seconds = _number(body, "seconds", MAX_DRILL_SECONDS, 30)
        delay = _number(body, "delayMs", MAX_DELAY_MS, 500) / 1000 if kind == "delay" else 0.0
        self._end_fault_injection(engine)
        self.drills[engine.id] = FaultInjection(engine, kind, delay, seconds)
        return f"a drill has begun: {kind}, for {seconds:g} s"

    def _end_fault_injection(self, engine: RemoteEngine) -> str:
        fault_injection = self.drills.pop(engine.id, None)
        if fault_injection is None or not fault_injection.on:
            return "no drill was on"
        fault_injection.end()
        return "the drill is over"

    def _engine(self, engine_id: Any) -> RemoteEngine:
        if type(engine_id) is not str:
            raise InvalidParams("'engine' must be the id of an engine", field="engine")
        for engine in self._state.engines.engines:
            if engine.id == engine_id:
                return engine
        raise NotFound(f"no engine '{engine_id[:128]}' is behind this gateway")

    def __repr__(self) -> str:
        return f"<AdminActions, {', '.join(map(repr, self.drills.values())) or 'no drill'}>"


def _number(body: dict[str, Any], field: str, most: float, default: float) -> float:
    value = body.get(field, default)
    if type(value) not in (int, float) or not 0 < value <= most:
        refuse_value(field, f"a number above 0 and up to {most:g}", value)
    number: float = value
    return number
