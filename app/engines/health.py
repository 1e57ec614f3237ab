"""The background loop: shakes hands with engines that are not up, pings those that are, each on a schedule of its own.

One engine that hangs delays no other. It decides when to look again; what it sees is kept by the engine itself.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from app.engines.engine import RemoteEngine
from app.protocol.errors import LegError
from app.settings.schema import EnginesSettings

FIRST_PAUSE = 0.1
"""Seconds before an engine that did not answer is tried again; doubled up to `reconnect_max_seconds`."""

JITTER = 0.2


class HealthLoop:
    """Watches engines until it is stopped; each tells of its changes between up and down itself."""

    def __init__(
        self,
        settings: EnginesSettings,
        jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER),
        follow: Callable[[RemoteEngine], Awaitable[None]] | None = None,
    ) -> None:
        """`follow` is awaited after each check that found an engine well."""
        self._settings = settings
        self._follow = follow
        self._jitter = jitter
        self._watches: dict[RemoteEngine, _Watch] = {}
        self._unseen: set[_Watch] = set()
        self._all_seen = asyncio.Event()

    def watch(self, engine: RemoteEngine) -> None:
        """Start looking after `engine` at once."""
        watch = _Watch(engine)
        watch.task = asyncio.create_task(self._look_after(watch), name=f"health:{engine.id}")
        watch.task.add_done_callback(_tell_of_fault)
        self._watches[engine] = watch
        self._unseen.add(watch)

    def unwatch(self, engine: RemoteEngine) -> None:
        """Look after it no longer."""
        watch = self._watches.pop(engine, None)
        if watch is not None:  # it may not have been started yet
            watch.task.cancel()
            self._unseen.discard(watch)
        self._all_seen.set()

    def hand_over(self, before: RemoteEngine, after: RemoteEngine) -> None:
        """Look after `after`, which has addresses of `before`, in its place: what is under way is not begun anew."""
        watch = self._watches.pop(before, None)
        if watch is None:
            self.watch(after)
            return
        watch.engine = after
        self._watches[after] = watch
        watch.changed.set()

    async def seen(self) -> None:
        """Wait until every engine has been looked at once, however that ended."""
        while self._unseen:
            self._all_seen.clear()
            await self._all_seen.wait()

    def renew(self, settings: EnginesSettings) -> None:
        """Look as often as `settings` say from the next look on."""
        self._settings = settings

    async def stop(self) -> None:
        """End every watch and wait until it has ended."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.task.cancel()
        await asyncio.gather(*(watch.task for watch in watches), return_exceptions=True)

    async def _look_after(self, watch: "_Watch") -> None:
        first = min(FIRST_PAUSE, self._settings.reconnect_max_seconds)
        pause = first
        while True:
            watch.changed.clear()
            engine = watch.engine
            well = await self._look(engine)
            self._unseen.discard(watch)
            self._all_seen.set()
            try:
                engine.settle()
            except Exception as own:  # noqa: BLE001 - who listens must not end the watch
                _tell(f"the report about {engine.id} failed", own)
            if well and engine.greeted:
                pause = first
                await watch.sleep(self._settings.health_interval_seconds * self._jitter())
            elif await watch.sleep(pause * self._jitter()):
                pause = first
            else:
                pause = min(pause * 2, self._settings.reconnect_max_seconds)

    async def _look(self, engine: RemoteEngine) -> bool:
        """Whether the engine is well, by a check; one that is not to be checked is, once it has been reached."""
        if not engine.entry.health_check and engine.advertisement is not None and engine.greeted:
            return True
        budget = engine.entry.timeout_ms / 1000
        try:
            await engine.check(asyncio.get_running_loop().time() + budget)
            if self._follow is not None:
                await self._follow(engine)
        except LegError:
            return False
        except Exception as fault:  # noqa: BLE001 - the edge of a check: a fault of ours must not end the watch
            _tell(f"a check of {engine.id} failed through a fault of the gateway", fault)
            return False
        return True

    def __repr__(self) -> str:
        return f"<HealthLoop watching {sorted(engine.id for engine in self._watches)}>"


class _Watch:
    """One engine that is looked after, and the task that does it."""

    __slots__ = ("changed", "engine", "task")

    task: asyncio.Task[None]

    def __init__(self, engine: RemoteEngine) -> None:
        self.engine = engine
        self.changed = asyncio.Event()
        """Another engine is looked after than at the last look."""

    async def sleep(self, seconds: float) -> bool:
        """Wait until the next look is due; whether that is now because the engine has changed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        return self.changed.is_set()

    def __repr__(self) -> str:
        return f"<Watch of {self.engine.id}>"


def _tell(message: str, fault: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": fault})


def _tell_of_fault(watch: asyncio.Task[None]) -> None:
    """A watch ends by being cancelled and in no other way; one that broke must not go unnoticed."""
    fault = None if watch.cancelled() else watch.exception()
    if fault is not None:
        message = f"the watch {watch.get_name()} ended through a fault of the gateway"
        watch.get_loop().call_exception_handler({"message": message, "exception": fault})
