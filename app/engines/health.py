"""Health checks: a `ping` of each engine that is up, a handshake with each that is down, each on its own schedule.

One engine that hangs delays no other. What engines do in traffic outranks what a check finds.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING

from app.engines.error_classification import CONTROL_CALLS, counts_as_failure, is_suspect, marks_down
from app.engines.policies import CallPolicies
from app.engines.replicas import Replica
from app.engines.transport import check_shape
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BadStatus, ConnectFailed, LegError, LegTimeout, ProtocolViolation
from app.settings.schema import EnginesSettings

if TYPE_CHECKING:
    from app.engines.engine import RemoteEngine

REFRESH = 4
"""Every so many checks, the advertisement is read again; that of a gateway is read each time."""


MAX_HANDSHAKES = 16
"""Concurrent handshakes of all engines: a reload with many engines must not open a burst of connections."""

SLOT_SECONDS = 5.0
"""A handshake that takes longer gives up its slot, so that hanging engines do not delay the others."""


class HandshakeSlots:
    """Limits concurrent handshakes; slots are given in the order in which they were requested."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_HANDSHAKES)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        await self._free.acquire()
        held = asyncio.get_running_loop().call_later(SLOT_SECONDS, self._free.release)
        try:
            yield
        finally:
            # Otherwise the timer has released the slot already.
            if held.when() > asyncio.get_running_loop().time():
                held.cancel()
                self._free.release()


class HealthCheck:
    """The checks of one engine. `known` gives its last known advertisement."""

    __slots__ = ("_known", "_pings", "_policies", "_rounds", "_slots", "latency_ms")

    def __init__(
        self, policies: CallPolicies, known: Callable[[], Advertisement | None], slots: HandshakeSlots
    ) -> None:
        self.latency_ms: float | None = None
        """Of the last successful check."""
        self._policies = policies
        self._known = known
        self._slots = slots
        self._pings = 0
        self._rounds = 0

    async def check(self, deadline: float) -> None:
        """Check the engine; one healthy replica is enough. Raises LegError.

        While the engine is down, all replicas get a handshake at once, and the first success makes the engine
        available. An engine that is up is pinged at one replica, each time at another; replicas without a handshake get
        one in the background.
        """
        availability = self._policies.tracker.availability
        availability.answered = False
        replicas = self._policies.tracker.replicas.all
        first = self._rounds
        self._rounds += 1
        if availability.fault is not None or self._known() is None:
            unreached = await self._handshake_all(replicas, deadline)
            if unreached is not None:
                self._fail_check(unreached)
            return
        for replica in replicas:
            if not replica.handshake_done:
                self._start_handshake(replica, deadline - _now())
        replicas = [replica for replica in replicas if replica.handshake_done] or replicas
        if not self._policies.entry.health_check:
            return
        # Each check starts at another replica, so that all are checked in turn.
        first %= len(replicas)
        fault: LegError | None = None
        for place, replica in enumerate((*replicas[first:], *replicas[:first])):
            # What a fast failure leaves of the time goes to the replicas that are still to be tried.
            share = (deadline - _now()) / (len(replicas) - place)
            try:
                await self._look(replica, _now() + share)
                return
            except LegError as failed:
                fault = failed
                self._failed(replica, fault)
        assert fault is not None
        self._fail_check(fault)

    def _fail_check(self, fault: LegError) -> None:
        """Apply a check that failed at all replicas. Raises LegError, unless calls were answered meanwhile."""
        availability = self._policies.tracker.availability
        if availability.answered:
            return  # traffic outranks the check
        if marks_down(fault) or is_suspect(fault) or availability.fault is not None:
            availability.mark_down(fault)
        raise fault

    def _failed(self, replica: Replica, fault: LegError) -> None:
        self._policies.tracker.mask(fault)
        if isinstance(fault, LegTimeout):
            replica.transport.overdue()
        if counts_as_failure(fault):  # -32603 included: the params of a check are the gateway's own
            self._policies.tracker.replicas.failed(replica, fault, _now())

    async def _handshake_all(self, replicas: Sequence[Replica], deadline: float) -> LegError | None:
        """Perform handshakes with all at once, until the first succeeds. Returns an error if none does."""
        started = perf_counter()
        seconds = deadline - _now()
        under_way = {self._start_handshake(replica, seconds) for replica in replicas}
        fault: LegError | None = None
        while under_way:
            try:
                ended, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # the engine is no longer checked
                for handshake in under_way:
                    handshake.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
                raise
            for handshake in ended:
                if handshake.cancelled():
                    continue
                failed = handshake.exception()
                if failed is None:
                    self._policies.tracker.checked()
                    self.latency_ms = (perf_counter() - started) * 1000
                    return None
                if not isinstance(failed, LegError):
                    raise failed
                fault = failed
        return fault or ConnectFailed("closed")

    def _start_handshake(self, replica: Replica, seconds: float) -> asyncio.Task[None]:
        """Start a handshake with one replica, unless one is running. It may take `seconds` from when it has a slot."""
        if replica.handshake_task is None or replica.handshake_task.done():
            made = asyncio.get_running_loop().create_task(
                self._run_handshake(replica, seconds), name=f"handshake:{self._policies.entry.id}/{replica.label}"
            )
            made.add_done_callback(_retrieve_error)
            replica.handshake_task = made
        return replica.handshake_task

    async def _run_handshake(self, replica: Replica, seconds: float) -> None:
        async with self._slots.hold():
            try:
                await self._perform_handshake(replica, _now() + seconds)
            except LegError as fault:
                self._failed(replica, fault)
                raise

    async def handshake(self, deadline: float) -> None:
        """Perform a handshake with all replicas at once; one success is enough. Raises LegError."""
        fault = await self._handshake_all(self._policies.tracker.replicas.all, deadline)
        if fault is not None:
            raise fault

    async def _perform_handshake(self, replica: Replica, deadline: float) -> None:
        """`initialize`, or `info` if it says it is initialized already (RCP §7.1, §13). Raises LegError."""
        await self._in_time(replica, deadline, "no answer to the handshake in time", by_handshake=True)

    async def control(self, method: str, replica: Replica, generation: int) -> None:
        """Make the control call of `method` and record its result.

        It bypasses the semaphore: a saturated engine is not a broken one.
        """
        tracker = self._policies.tracker
        fault: LegError | None = None
        try:
            async with asyncio.timeout(self._policies.entry.timeout_ms / 1000):
                # Straight to the transport: the control call must not be retried, hedged or refused.
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
        # A gateway's capabilities change with its engines; those of an engine only when it is replaced.
        if advertisement.gateway_id is not None or self._pings % REFRESH == 0:
            await self._refresh(replica, deadline)
        tracker.checked()
        self.latency_ms = (perf_counter() - started) * 1000

    async def _ping(self, replica: Replica, deadline: float) -> None:
        try:
            await self._in_time(replica, deadline, "no answer to ping", by_handshake=False)
        except (BadStatus, ProtocolViolation):
            await self._perform_handshake(
                replica, deadline
            )  # it may not serve ping at all; what it does serve outranks that
        except LegError as fault:
            if marks_down(fault):
                raise

    async def _refresh(self, replica: Replica, deadline: float) -> None:
        """Read the advertisement again: the engine may have been replaced, and a gateway's engines change."""
        try:
            async with asyncio.timeout_at(deadline):
                await replica.handshake.refresh()
        except (TimeoutError, LegError):
            return  # it answers pings: its last advertisement stays valid

    async def _in_time(self, replica: Replica, deadline: float, words: str, *, by_handshake: bool) -> None:
        """Send a ping or perform a handshake. Raises LegError.

        It bypasses the semaphore: a saturated engine is not a dead one.
        """
        try:
            async with asyncio.timeout_at(deadline):
                if by_handshake:
                    await replica.handshake.perform(replica.handshake.count)
                else:
                    await replica.transport.call("ping", {})
        except TimeoutError:
            raise LegTimeout(words) from None

    def __repr__(self) -> str:
        latency = "" if self.latency_ms is None else f", the last took {self.latency_ms:.1f} ms"
        return f"<HealthCheck {self._rounds} checks{latency}>"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _retrieve_error(handshake: asyncio.Task[None]) -> None:
    """Look at the error, which is recorded already: asyncio logs one that nobody has looked at."""
    if not handshake.cancelled():
        handshake.exception()


FIRST_PAUSE = 0.1
"""Seconds before an engine that did not answer is tried again; doubled up to `reconnect_max_seconds`."""

JITTER = 0.2


class HealthLoop:
    """Checks engines in the background until it is stopped. Each engine reports its own changes between up and down."""

    def __init__(
        self,
        settings: EnginesSettings,
        jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER),
        follow: "Callable[[RemoteEngine], Awaitable[None]] | None" = None,
    ) -> None:
        """`follow` is awaited after each successful check."""
        self._settings = settings
        self._follow = follow
        self._jitter = jitter
        self._watches: dict[RemoteEngine, _Watch] = {}
        self._unchecked: set[_Watch] = set()
        self._progress = asyncio.Event()

    def watch(self, engine: "RemoteEngine") -> None:
        """Start to check `engine`, the first time at once."""
        watch = _Watch(engine)
        watch.task = asyncio.create_task(self._run_checks(watch), name=f"health:{engine.id}")
        watch.task.add_done_callback(_report_end)
        self._watches[engine] = watch
        self._unchecked.add(watch)

    def unwatch(self, engine: "RemoteEngine") -> None:
        """Stop checking it."""
        watch = self._watches.pop(engine, None)
        if watch is not None:  # it may not have been started yet
            watch.task.cancel()
            self._unchecked.discard(watch)
        self._progress.set()

    def hand_over(self, before: "RemoteEngine", after: "RemoteEngine") -> None:
        """Check `after` in place of `before`, with which it shares addresses. A running check continues."""
        watch = self._watches.pop(before, None)
        if watch is None:
            self.watch(after)
            return
        watch.engine = after
        self._watches[after] = watch
        watch.changed.set()

    async def first_round(self) -> None:
        """Wait until every engine has been checked once, with whatever result."""
        while self._unchecked:
            self._progress.clear()
            await self._progress.wait()

    def renew(self, settings: EnginesSettings) -> None:
        """Apply other intervals from the next check on."""
        self._settings = settings

    async def stop(self) -> None:
        """End every watch and wait until it has ended."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.task.cancel()
        await asyncio.gather(*(watch.task for watch in watches), return_exceptions=True)

    async def _run_checks(self, watch: "_Watch") -> None:
        first = min(FIRST_PAUSE, self._settings.reconnect_max_seconds)
        pause = first
        while True:
            watch.changed.clear()
            engine = watch.engine
            well = await self._look(engine)
            self._unchecked.discard(watch)
            self._progress.set()
            try:
                engine.report()
            except Exception as own:  # noqa: BLE001 - who listens must not end the watch
                _report_bug(f"the report about {engine.id} failed", own)
            if well and engine.handshake_done:
                pause = first
                # Jitter keeps many gateways, and many engines, from checking in step.
                await watch.sleep(self._settings.health_interval_seconds * self._jitter())
            elif await watch.sleep(pause * self._jitter()):
                pause = first
            else:
                # An engine that is down for long is checked less often.
                pause = min(pause * 2, self._settings.reconnect_max_seconds)

    async def _look(self, engine: "RemoteEngine") -> bool:
        """Check one engine. Returns whether it is healthy; with `healthCheck: false`, one handshake is enough."""
        if not engine.entry.health_check and engine.advertisement is not None and engine.handshake_done:
            return True
        budget = engine.entry.timeout_ms / 1000
        try:
            await engine.check(asyncio.get_running_loop().time() + budget)
            if self._follow is not None:
                await self._follow(engine)
        except LegError:
            return False
        except Exception as fault:  # noqa: BLE001 - the edge of a check: a bug must not end the checks
            _report_bug(f"a check of {engine.id} failed through a bug of the gateway", fault)
            return False
        return True

    def __repr__(self) -> str:
        return f"<HealthLoop watching {sorted(engine.id for engine in self._watches)}>"


class _Watch:
    """One engine that is checked, and the task that does it."""

    __slots__ = ("changed", "engine", "task")

    task: asyncio.Task[None]

    def __init__(self, engine: "RemoteEngine") -> None:
        self.engine = engine
        self.changed = asyncio.Event()
        """Set when another engine has taken the place of the one that was checked last."""

    async def sleep(self, seconds: float) -> bool:
        """Wait until the next check is due. Returns whether it is due early, because the engine has changed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        return self.changed.is_set()

    def __repr__(self) -> str:
        return f"<Watch of {self.engine.id}>"


def _report_bug(message: str, fault: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": fault})


def _report_end(watch: asyncio.Task[None]) -> None:
    """Report a watch that ended otherwise than by being cancelled."""
    fault = None if watch.cancelled() else watch.exception()
    if fault is not None:
        message = f"the watch {watch.get_name()} ended through a bug of the gateway"
        watch.get_loop().call_exception_handler({"message": message, "exception": fault})
