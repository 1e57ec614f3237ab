"""Fixtures of the whole-gateway tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine

Starter = Callable[..., Awaitable[ScriptedEngine]]


@pytest.fixture
async def engines() -> AsyncIterator[Starter]:
    """Starts scripted engines on demand, on any port or a named one, and stops them all."""
    started: list[ScriptedEngine] = []

    async def start(port: int = 0, **script: Any) -> ScriptedEngine:
        engine = await ScriptedEngine(**script).start(port)
        started.append(engine)
        return engine

    yield start
    await asyncio.gather(*(engine.stop() for engine in started))


@pytest.fixture
async def engine(engines: Starter) -> ScriptedEngine:
    """One scripted engine, for tests that need no more of it than that it is there."""
    return await engines()
