"""Methods of the federation asked directly: engines that only play scripts, and a call as the endpoint makes it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.api.methods import FEDERATED
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.methods.extension import extend
from app.protocol.errors import CALL_KINDS, RcpError
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, members_of, method_call_of

Method = Callable[..., Awaitable[Json]]


async def asked(method: str, params: Json, *engines: FakeEngine, **call: Any) -> Json:
    """The result of one call to these engines, in this order."""
    members = members_of(*engines)
    metrics = Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    made = method_call_of(method, params, now=asyncio.get_running_loop().time(), **call)
    answer: Method = FEDERATED.get(method, extend)
    return await answer(made, members, GatewaySettings(), RetrieveInstrumentation(metrics))


async def error_of(method: str, params: Json, *engines: FakeEngine, **call: Any) -> RcpError:
    """The error of one call."""
    with pytest.raises(RcpError) as error:
        await asked(method, params, *engines, **call)
    return error.value


def told(result: Json) -> dict[str, str]:
    """Engine id -> its status, or why it failed or was not asked."""
    return {entry["id"]: entry.get("reason", entry["status"]) for entry in result["_meta"]["x-gateway"]["engines"]}


def sent(engine: FakeEngine, place: int = 0) -> Json:
    """What an engine was sent, without `_meta`."""
    return {key: value for key, value in engine.asked[place].items() if key != "_meta"}
