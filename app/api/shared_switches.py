"""Engines that operators have switched off, at this process or at all processes that share a state.

With a shared state, the list is kept there and every process looks at it every two seconds. It then outlives restarts.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from app.engines.registry import EngineSet
from app.state.store import MemoryStore, StateBackend
from app.telemetry.logs import logger

POLL_SECONDS: Final = 2.0
KEEP_SECONDS: Final = 30 * 86_400.0
"""A switch that nobody touches ends after this time."""

KEY: Final = "switched-off"


class SharedSwitches:
    """Switches engines off and on, and follows what other processes switch."""

    __slots__ = ("_engines", "_store", "_task")

    def __init__(self, engines: EngineSet, backend: StateBackend, *, shared: bool) -> None:
        self._engines = engines
        self._store = backend.store("switches", MemoryStore(1, 1), permanent=True) if shared else None
        self._task: asyncio.Task[None] | None = None

    @property
    def scope(self) -> str:
        """`all`: a switch concerns all processes that share the state; `process`: only this one."""
        return "process" if self._store is None else "all"

    def start(self) -> None:
        """Follow the other processes."""
        if self._store is not None:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def switch(self, engine_id: str, on: bool) -> bool:
        """Switch an engine on or off: here at once, elsewhere within two seconds. Returns whether it changed."""
        changed = self._engines.switch(engine_id, on)
        if self._store is not None:

            def change(off: Any) -> list[str]:
                others = {engine for engine in off or () if engine != engine_id}
                return sorted(others if on else others | {engine_id})

            await self._store.change(KEY, change, KEEP_SECONDS, _unchanged, _unchanged, size=lambda off: 1)
        return changed

    async def look(self) -> None:
        """Apply what other processes have switched."""
        assert self._store is not None
        off = await self._store.get(KEY, _unchanged)
        # During an outage nothing is known of the others, so everything stays as it is.
        if off is None or self._store.degraded:
            return
        for engine_id in self._known():
            on = engine_id not in off
            if self._engines.switch(engine_id, on):
                logger().warning("engine_switched", engine=engine_id, to="on" if on else "off", by="another process")

    def _known(self) -> Iterable[str]:
        return [engine.id for engine in self._engines.engines]

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(POLL_SECONDS)

    def __repr__(self) -> str:
        return f"<SharedSwitches of {self.scope}, off: {', '.join(sorted(self._engines.switched_off)) or 'none'}>"


def _unchanged(value: Any) -> Any:
    return value
