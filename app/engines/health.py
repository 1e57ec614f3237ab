"""Health checks: a `ping` of each engine that is up, a handshake with each that is down, each on its own schedule.

One engine that hangs delays no other. What engines do in traffic outranks what a check finds.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING

from app.engines.error_classification import CONTROL_CALLS, counts, is_suspect, marks_down
from app.engines.policies import CallPolicies
from app.engines.replicas import Replica
from app.engines.transport import check_shape
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BadStatus, ConnectFailed, LegError, LegTimeout, ProtocolViolation
from app.settings.schema import EnginesSettings

if TYPE_CHECKING:
    from app.engines.engine import RemoteEngine

REFRESH = 4
"""Every how many checks an engine that is up is asked again what it can do; a gateway is asked each time."""


AT_ONCE = 16
"""Handshakes under way at once, over all engines: a reload of many engines is no burst of connections."""

HELD_SECONDS = 5.0
"""A handshake that takes longer gives its place to the next one, so that engines that hang keep nobody waiting."""


class Places:
    """The places for handshakes that are under way at once, in the order in which they were asked for."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        await self._free.acquire()
        held = asyncio.get_running_loop().call_later(HELD_SECONDS, self._free.release)
        try:
            yield
        finally:
            if held.when() > asyncio.get_running_loop().time():
                held.cancel()
                self._free.release()


class HealthCheck:
    """The checks of one engine. `known` gives its last known advertisement."""

    __slots__ = ("_known", "_pings", "_places", "_policies", "_rounds", "latency_ms")

    def __init__(self, policies: CallPolicies, known: Callable[[], Advertisement | None], places: Places) -> None:
        self.latency_ms: float | None = None
        """Of the last check that went well."""
        self._policies = policies
        self._known = known
        self._places = places
        self._pings = 0
        self._rounds = 0

    async def check(self, deadline: float) -> None:
        """One replica that is well will do. Raises LegError.

        While a handshake is due all replicas are greeted at once, and the first that answers makes the engine
        available. An engine that is up is pinged at one of its replicas, each time at another; those that have not
        shaken hands yet are greeted beside that.
        """
        availability = self._policies.tracker.availability
        availability.answered = False
        replicas = self._policies.tracker.replicas.all
        first = self._rounds
        self._rounds += 1
        if availability.fault is not None or self._known() is None:
            unreached = await self._greet_all(replicas, deadline)
            if unreached is not None:
                self._judge(unreached)
            return
        for replica in replicas:
            if not replica.greeted:
                self._greet(replica, deadline - _now())
        replicas = [replica for replica in replicas if replica.greeted] or replicas
        if not self._policies.entry.health_check:
            return
        first %= len(replicas)
        fault: LegError | None = None
        for place, replica in enumerate((*replicas[first:], *replicas[:first])):
            share = (deadline - _now()) / (len(replicas) - place)
            try:
                await self._look(replica, _now() + share)
                return
            except LegError as failed:
                fault = failed
                self._failed(replica, fault)
        assert fault is not None
        self._judge(fault)

    def _judge(self, fault: LegError) -> None:
        """No replica was well. Raises LegError, unless calls were answered meanwhile."""
        availability = self._policies.tracker.availability
        if availability.answered:
            return  # it serves what it is there for
        if marks_down(fault) or is_suspect(fault) or availability.fault is not None:
            availability.bad(fault)
        raise fault

    def _failed(self, replica: Replica, fault: LegError) -> None:
        self._policies.tracker.mask(fault)
        if isinstance(fault, LegTimeout):
            replica.transport.overdue()
        if counts(fault):  # -32603 as well: what a check asks is our own
            self._policies.tracker.replicas.failed(replica, fault, _now())

    async def _greet_all(self, replicas: Sequence[Replica], deadline: float) -> LegError | None:
        """Shake hands with all at once. Done with the first that succeeds; the fault of one if none does."""
        started = perf_counter()
        seconds = deadline - _now()
        under_way = {self._greet(replica, seconds) for replica in replicas}
        fault: LegError | None = None
        while under_way:
            try:
                ended, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # the engine is not looked after any more
                for greeting in under_way:
                    greeting.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
                raise
            for greeting in ended:
                if greeting.cancelled():
                    continue
                failed = greeting.exception()
                if failed is None:
                    self._policies.tracker.checked()
                    self.latency_ms = (perf_counter() - started) * 1000
                    return None
                if not isinstance(failed, LegError):
                    raise failed
                fault = failed
        return fault or ConnectFailed("closed")

    def _greet(self, replica: Replica, seconds: float) -> asyncio.Task[None]:
        """A handshake with one replica in the background, unless one is under way; `seconds` once it has a place."""
        if replica.greeting is None or replica.greeting.done():
            made = asyncio.get_running_loop().create_task(
                self._greeting(replica, seconds), name=f"greet:{self._policies.entry.id}/{replica.label}"
            )
            made.add_done_callback(_seen)
            replica.greeting = made
        return replica.greeting

    async def _greeting(self, replica: Replica, seconds: float) -> None:
        async with self._places.one():
            try:
                await self._shake(replica, _now() + seconds)
            except LegError as fault:
                self._failed(replica, fault)
                raise

    async def handshake(self, deadline: float) -> None:
        """Shake hands with all replicas at once; one that succeeds will do. Raises LegError."""
        fault = await self._greet_all(self._policies.tracker.replicas.all, deadline)
        if fault is not None:
            raise fault

    async def _shake(self, replica: Replica, deadline: float) -> None:
        """`initialize`, or `info` if it says it is initialized already (RCP §7.1, §13). Raises LegError."""
        await self._in_time(replica, deadline, "the handshake took longer than it was given", shaking=True)

    async def control(self, method: str, replica: Replica, generation: int) -> None:
        """Make a plain call and tell the ledger what came of it. Not through the gate: a saturated engine is not a
        broken one."""
        tracker = self._policies.tracker
        fault: LegError | None = None
        try:
            async with asyncio.timeout(self._policies.entry.timeout_ms / 1000):
                reply = await replica.transport.call(method, CONTROL_CALLS[method])
            check_shape(method, reply.result)
        except TimeoutError:
            fault = LegTimeout("no answer to a control call")
            replica.transport.overdue()
        except LegError as failed:
            fault = tracker.mask(failed)
        tracker.verified(replica, generation, fault)

    async def _look(self, replica: Replica, deadline: float) -> None:
        tracker = self._policies.tracker
        started = perf_counter()  # the loop's own clock may be no finer than a millisecond
        advertisement = self._known()
        assert advertisement is not None
        self._pings += 1
        await self._ping(replica, deadline)
        if advertisement.gateway_id is not None or self._pings % REFRESH == 0:
            await self._refresh(replica, deadline)
        tracker.checked()
        self.latency_ms = (perf_counter() - started) * 1000

    async def _ping(self, replica: Replica, deadline: float) -> None:
        try:
            await self._in_time(replica, deadline, "no answer to ping", shaking=False)
        except (BadStatus, ProtocolViolation):
            await self._shake(replica, deadline)  # it may not serve ping at all; what it does serve outranks that
        except LegError as fault:
            if marks_down(fault):
                raise

    async def _refresh(self, replica: Replica, deadline: float) -> None:
        """Ask once more what it can do: it may have been replaced unnoticed, and a gateway's engines come and go."""
        try:
            async with asyncio.timeout_at(deadline):
                await replica.handshake.refresh()
        except (TimeoutError, LegError):
            return  # it answers pings: what it said last still holds

    async def _in_time(self, replica: Replica, deadline: float, words: str, *, shaking: bool) -> None:
        """Raises LegError; not through the gate: a saturated engine is not a dead one."""
        try:
            async with asyncio.timeout_at(deadline):
                if shaking:
                    await replica.handshake.shake(replica.handshake.count)
                else:
                    await replica.transport.call("ping", {})
        except TimeoutError:
            raise LegTimeout(words) from None

    def __repr__(self) -> str:
        latency = "" if self.latency_ms is None else f", the last took {self.latency_ms:.1f} ms"
        return f"<Checkup {self._rounds} checks{latency}>"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seen(greeting: asyncio.Task[None]) -> None:
    """What went wrong is written down already; here it only counts as fetched."""
    if not greeting.cancelled():
        greeting.exception()


FIRST_PAUSE = 0.1
"""Seconds before an engine that did not answer is tried again; doubled up to `reconnect_max_seconds`."""

JITTER = 0.2


class HealthLoop:
    """Watches engines until it is stopped; each tells of its changes between up and down itself."""

    def __init__(
        self,
        settings: EnginesSettings,
        jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER),
        follow: "Callable[[RemoteEngine], Awaitable[None]] | None" = None,
    ) -> None:
        """`follow` is awaited after each check that found an engine well."""
        self._settings = settings
        self._follow = follow
        self._jitter = jitter
        self._watches: dict[RemoteEngine, _Watch] = {}
        self._unseen: set[_Watch] = set()
        self._all_seen = asyncio.Event()

    def watch(self, engine: "RemoteEngine") -> None:
        """Start looking after `engine` at once."""
        watch = _Watch(engine)
        watch.task = asyncio.create_task(self._look_after(watch), name=f"health:{engine.id}")
        watch.task.add_done_callback(_tell_of_fault)
        self._watches[engine] = watch
        self._unseen.add(watch)

    def unwatch(self, engine: "RemoteEngine") -> None:
        """Look after it no longer."""
        watch = self._watches.pop(engine, None)
        if watch is not None:  # it may not have been started yet
            watch.task.cancel()
            self._unseen.discard(watch)
        self._all_seen.set()

    def hand_over(self, before: "RemoteEngine", after: "RemoteEngine") -> None:
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

    async def _look(self, engine: "RemoteEngine") -> bool:
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

    def __init__(self, engine: "RemoteEngine") -> None:
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
