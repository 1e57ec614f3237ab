"""Calls to several scripted engines at once, made without the API."""

import asyncio
from typing import Any

from app.federation.broadcast import BroadcastContext
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.pagination import Pages
from app.federation.progress import ProgressListener
from app.protocol.errors import CALL_KINDS
from app.settings.schema import GatewaySettings
from app.settings.state import StateSettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, members_of, method_call_of


def context_of(
    method: str,
    params: Json,
    *engines: FakeEngine,
    listener: ProgressListener | None = None,
    settings: Any = None,
    **call: Any,
) -> BroadcastContext:
    """One call to these engines, accepted now; each of their capabilities is advertised."""
    members = members_of(*engines)
    offered = {name: {} for engine in engines if engine.advertisement for name in engine.advertisement.capabilities}
    members.capabilities.update(offered)  # type: ignore[attr-defined]
    metrics = Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    made = method_call_of(method, params, now=asyncio.get_running_loop().time(), **call)
    return BroadcastContext(
        made, members, GatewaySettings.model_validate(settings or {}), RetrieveInstrumentation(metrics), listener
    )


def temporary_pages() -> Pages:
    """Pages that last as long as the test."""
    return Pages.from_settings(StateSettings())
