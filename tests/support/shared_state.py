"""Links, stores and counters over a real Redis, each test under keys of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from prometheus_client import CollectorRegistry

from app.state.redis import RedisConnection
from app.state.redis_store import RedisStore
from app.state.store import MemoryStore
from app.telemetry.metric_groups import StateMetrics
from app.telemetry.series import MetricRegistry
from tests.support.running_gateway import until

PATIENT = 10.0
"""Seconds: far more than Redis takes on a busy machine."""


class Watched:
    """The metrics of a link under test."""

    def __init__(self) -> None:
        families = MetricRegistry()
        self.registry = CollectorRegistry()
        self.registry.register(families)
        self.metrics = StateMetrics(families)

    def value(self, name: str, **labels: str) -> float:
        """One series right now."""
        value = self.registry.get_sample_value(f"rcp_gateway_state_{name}", labels)
        assert value is not None, name
        return value


def unique() -> str:
    """A prefix that no other test has."""
    return f"test-{uuid4().hex[:12]}"


@asynccontextmanager
async def linked(
    url: str, watched: Watched, patience: float = PATIENT, connections: int = 4
) -> AsyncIterator[RedisConnection]:
    """A started link."""
    link = RedisConnection(url, connections, patience, f"{unique()}:probe", watched.metrics)
    await link.start()
    try:
        yield link
    finally:
        await link.close()


def store_on(link: RedisConnection, watched: Watched, namespace: str, **more: Any) -> RedisStore:
    """A store over the link, with room here for 100 values."""
    return RedisStore("pages", link, MemoryStore(100, 1000), lambda: namespace, watched.metrics, **more)


async def back(link: RedisConnection) -> None:
    """Wait until the link has recovered."""
    await until(lambda: link.up)
