"""The operator's JSON: the engines as this process sees them.

Read-only. It decides what an operator may see: ids, states and capabilities, never addresses or credentials; a tenant
without the role `admin` sees its own engines. It refuses to know how any of it comes about, and asks no engine.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.state import GatewayState
from app.api.visit import TurnedAway
from app.engines.engine import RemoteEngine
from app.federation.tenant import ADMIN
from app.protocol import envelope

SCOPE = "process"
"""Whose view it is: each worker has its own breakers, bounds and replicas."""


def admin(state: GatewayState) -> APIRouter:
    """The routes of one gateway's operator view."""
    router = APIRouter()

    @router.get("/engines")
    async def engines(request: Request) -> Response:
        seen: Sequence[RemoteEngine] = state.engines.engines
        if state.guard is not None:
            try:
                tenant = (await state.guard.identify(request.scope)).tenant
            except TurnedAway as away:
                return refusal(away)
            if ADMIN not in tenant.roles:
                seen = [engine for engine in seen if state.membership.sees(tenant, engine.id)]
        body = {"engines": [_engine(engine) for engine in seen], "scope": SCOPE}
        return Response(envelope.dumps(body), media_type="application/json")

    return router


def refusal(away: TurnedAway) -> Response:
    """The answer to somebody whom the guard does not let in: as at the RPC door."""
    headers = {name.decode(): value.decode() for name, value in away.headers}
    return Response(envelope.failure(None, away.fault), away.status, headers, media_type="application/json")


def _engine(engine: RemoteEngine) -> dict[str, Any]:
    advertisement = engine.advertisement
    return {
        "id": engine.id,
        "up": engine.up,
        "version": advertisement.server["version"] if advertisement else None,
        "server": advertisement.server["name"] if advertisement else None,
        "capabilities": sorted(advertisement.capabilities) if advertisement else [],
        "latencyMs": None if engine.last_latency_ms is None else round(engine.last_latency_ms, 2),
        "inFlight": engine.gate.in_flight,
        "reason": engine.down_reason,
        **_guards(engine),
    }


def _guards(engine: RemoteEngine) -> dict[str, Any]:
    """What keeps calls from the engine, or from one of its replicas."""
    standing = engine.state()
    retry_in = engine.retry_in()
    told: dict[str, Any] = {
        "waiting": standing.waiting,
        "breaker": standing.breaker,
        "retryInMs": None if retry_in is None else round(retry_in * 1000),
    }
    if standing.replicas:
        told["replicas"] = [{"id": one.label, "up": one.up, "inFlight": one.in_flight} for one in standing.replicas]
    return told
