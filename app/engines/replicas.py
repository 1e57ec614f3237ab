"""The replicas of one engine: which one is called next, and which ones are ejected for a while.

The choice is the less busy of two random replicas ("power of two choices"). A replica with several failures in a row is
ejected, but never the last one. One that returns gets its share of calls gradually.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.engines.handshake import EngineHandshake
from app.engines.transport import Transport
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError

LONGEST_SECONDS = 60.0
"""Longest ejection of a replica, and longest pause that a replica can ask for."""

MIN_SHARE = 0.1
"""Share of its calls that a replica gets immediately after its return."""


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """When a replica is ejected, and for how long."""

    failures: int = 3
    """In a row; 0: never."""
    seconds: float = 5.0
    slow_start: float = 10.0
    """Seconds until a replica that has returned gets its full share again."""


class Replica:
    """One address of an engine. `label` names it in metrics, logs and reports."""

    __slots__ = (
        "back_since",
        "connection_key",
        "control_task",
        "ejected_until",
        "ejections",
        "failures",
        "handshake",
        "handshake_task",
        "held_until",
        "in_flight",
        "label",
        "ready",
        "transport",
    )

    def __init__(self, label: str, transport: Transport, remember: Callable[[Advertisement], None]) -> None:
        self.label = label
        self.transport = transport
        self.handshake = EngineHandshake(transport, remember)
        self.ready = True
        """Whether it can be called at once, without a look at the clock. Kept up to date by `update_ready`."""
        self.in_flight = 0
        self.failures = 0
        """In a row."""
        self.ejections = 0
        """In a row, without a full slow start in between."""
        self.ejected_until: float | None = None
        self.held_until: float | None = None
        """End of the pause that it has asked for (-32011, HTTP 429), in event-loop seconds."""
        self.back_since: float | None = None
        self.handshake_task: asyncio.Task[None] | None = None
        """A handshake in the background; it ends by itself or with `close`."""
        self.control_task: asyncio.Task[None] | None = None
        """The last control call; it ends by itself or with `close`."""
        self.connection_key: object = None
        """Address, command, headers and all else that decides what answers. A reload keeps replicas with equal keys."""

    @property
    def handshake_done(self) -> bool:
        """Whether a handshake with it has succeeded."""
        return self.handshake.count > 0

    async def close(self) -> None:
        """Release its connections or its process."""
        under_way = [task for task in (self.handshake_task, self.control_task) if task is not None]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self.transport.close()

    def reach(self, transport: Transport) -> None:
        """Use another transport from the next call on."""
        self.transport = self.handshake.transport = transport

    def update_ready(self) -> None:
        """Something about it has changed, or may have: see whether it is at hand."""
        self.ready = self.held_until is None and self.ejected_until is None and not self.handshake.due

    def __repr__(self) -> str:
        state = "ejected" if self.ejected_until is not None else "held" if self.held_until is not None else "in use"
        return f"<Replica {self.label} {state}, {self.in_flight} in flight, {self.failures} failures in a row>"


EjectionListener = Callable[[Replica, LegError | None], None]
"""Called when a replica is ejected (why) and when it returns (None)."""


class Replicas:
    """All replicas of one engine, at least one. `chance` returns random numbers in [0, 1)."""

    __slots__ = ("_all", "_chance", "_changing", "_listener", "_rules", "single")

    def __init__(
        self, replicas: Sequence[Replica], rules: EjectionRules, chance: Callable[[], float], listener: EjectionListener
    ):
        self._all = tuple(replicas)
        self._rules = rules
        self._chance = chance
        self._listener = listener
        self._changing = True
        self.single = self._all[0] if len(self._all) == 1 else None

    def renew(self, replicas: Sequence[Replica], rules: EjectionRules) -> None:
        """Apply other addresses or rules; replicas that stay keep their state."""
        self._all = tuple(replicas)
        self._rules = rules
        self._changing = True
        self.single = self._all[0] if len(self._all) == 1 else None
        # A reload may leave one replica, ejected under the earlier rules.
        if self.single is not None:
            self.single.ejected_until = None  # the last one is never ejected
            self.single.update_ready()

    @property
    def all(self) -> Sequence[Replica]:
        """In the order of the registry entry."""
        return self._all

    def named(self, label: str | None) -> Replica | None:
        """The replica of this label."""
        return next((replica for replica in self._all if replica.label == label), None)

    def choose(self, now: float, avoid: Replica | None = None) -> Replica | None:
        """The replica to call next, if possible not `avoid`; None while all have asked for a pause."""
        if self._changing:
            self._update(now)
        # The filters below are needed only while some replica is ejected, paused, slow-starting or new.
        at_rest = self._changing
        open_ = [replica for replica in self._all if replica.held_until is None] if at_rest else self._all
        usable = [replica for replica in open_ if replica.ejected_until is None] if at_rest else open_
        if at_rest:
            # A replica without a handshake may not be running yet: prefer the others.
            usable = [replica for replica in usable if replica.handshake_done] or usable
        # All others are ejected: an ejected replica is better than none.
        usable = usable or open_
        if avoid is not None and len(usable) > 1:
            usable = [replica for replica in usable if replica is not avoid]
        if len(usable) < 2:
            return usable[0] if usable else None
        # During slow start a replica takes part in the draw only some of the time.
        return self._better_of_two([replica for replica in usable if self._has_its_turn(replica, now)] or usable)

    def held_for(self, now: float) -> float | None:
        """Seconds until one may be called again; None unless all have asked for a pause."""
        waits = [replica.held_until - now for replica in self._all if replica.held_until is not None]
        return max(0.0, min(waits)) if len(waits) == len(self._all) and min(waits) > 0 else None

    def hold(self, replica: Replica, now: float, seconds: float) -> None:
        """Pause a replica that has asked for it."""
        replica.held_until = now + min(seconds, LONGEST_SECONDS)
        replica.update_ready()
        self._changing = True

    def succeeded(self, replica: Replica) -> None:
        """Record an answered call."""
        replica.failures = 0
        if replica.back_since is None:
            replica.ejections = 0

    def failed(self, replica: Replica, fault: LegError, now: float) -> None:
        """Record a failure, and eject the replica after several in a row, unless it is the last one in use."""
        replica.failures += 1
        limit = self._rules.failures
        if self.single is not None or not limit or replica.failures < limit or replica.ejected_until is not None:
            return
        # The last replica in use stays in use: the breaker judges the engine as a whole.
        if all(other.ejected_until is not None for other in self._all if other is not replica):
            return
        # Doubled with each ejection in a row, up to a minute.
        replica.ejected_until = now + min(self._rules.seconds * 2.0**replica.ejections, LONGEST_SECONDS)
        # Bounded, because 2.0 ** 1024 overflows.
        replica.ejections = min(replica.ejections + 1, 16)
        replica.back_since = None
        replica.update_ready()
        # Its name may resolve to a healthy address by the time it returns.
        replica.transport.renew()
        self._changing = True
        self._listener(replica, fault)

    def reset(self) -> None:
        """Forget all failures, ejections and pauses."""
        for replica in self._all:
            replica.failures = replica.ejections = 0
            replica.ejected_until = replica.held_until = replica.back_since = None
            replica.update_ready()
        self._changing = True

    def _update(self, now: float) -> None:
        """Return replicas whose ejection or pause is over."""
        for replica in self._all:
            if replica.held_until is not None and now >= replica.held_until:
                replica.held_until = None
            if replica.ejected_until is not None and now >= replica.ejected_until:
                replica.ejected_until = None
                replica.back_since = now
                replica.failures = self._rules.failures - 1  # one more failure ejects it again
                self._listener(replica, None)
            if replica.back_since is not None and now >= replica.back_since + self._rules.slow_start:
                replica.back_since = None
            replica.update_ready()
        self._changing = any(
            replica.held_until is not None
            or replica.ejected_until is not None
            or replica.back_since is not None
            or not replica.handshake_done
            for replica in self._all
        )

    def _has_its_turn(self, replica: Replica, now: float) -> bool:
        if replica.back_since is None:
            return True
        return self._chance() < max(MIN_SHARE, (now - replica.back_since) / self._rules.slow_start)

    def _better_of_two(self, usable: Sequence[Replica]) -> Replica:
        first = int(self._chance() * len(usable))
        if len(usable) == 1:
            return usable[0]
        second = int(self._chance() * (len(usable) - 1))
        one, other = usable[first], usable[second + (second >= first)]
        # Choosing the less busy of two random replicas avoids herding onto the single least busy one.
        return one if one.in_flight <= other.in_flight else other

    def __repr__(self) -> str:
        return f"<Replicas {', '.join(map(repr, self._all))}>"
