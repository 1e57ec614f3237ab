"""The replicas of one engine: who is asked next, who is left out for a while, and how it comes back.

Engines room. Power of two choices by calls under way; one that fails in a row is ejected, never the last; one that is
back gets its share slowly. It refuses to know what is asked and what counts as a failure.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.engines.handshake import EngineHandshake
from app.engines.transport import Transport
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError

LONGEST_SECONDS = 60.0
"""Most that a replica is ejected, and most that its wish to be left alone is honoured, at a time."""

LEAST_SHARE = 0.1
"""Of its share of calls, for a replica that is just back."""


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """When a replica is left out, and for how long."""

    failures: int = 3
    """In a row; 0: never."""
    seconds: float = 5.0
    slow_start: float = 10.0
    """Seconds until one that is back has its full share again."""


class Replica:
    """One address of an engine. `label` names it in metrics, logs and reports."""

    __slots__ = (
        "at_hand",
        "back_since",
        "control",
        "ejected_until",
        "ejections",
        "failures",
        "greeting",
        "handshake",
        "held_until",
        "in_flight",
        "label",
        "transport",
        "way",
    )

    def __init__(self, label: str, transport: Transport, remember: Callable[[Advertisement], None]) -> None:
        self.label = label
        self.transport = transport
        self.handshake = EngineHandshake(transport, remember)
        self.at_hand = True
        """Whether it can be asked at once, without a look at the clock; `look` finds out."""
        self.in_flight = 0
        self.failures = 0
        """In a row."""
        self.ejections = 0
        """In a row, without having been well for a slow start in between."""
        self.ejected_until: float | None = None
        self.held_until: float | None = None
        """It asked not to be asked before (-32011, HTTP 429)."""
        self.back_since: float | None = None
        self.greeting: asyncio.Task[None] | None = None
        """A handshake under way in the background; it ends by itself or with `close`."""
        self.control: asyncio.Task[None] | None = None
        """The last control call (suspicion.py); it ends by itself or with `close`."""
        self.way: object = None
        """What decides who answers here (address, command, headers ...); replicas of one way are interchangeable."""

    @property
    def greeted(self) -> bool:
        """Whether a handshake with it has succeeded."""
        return self.handshake.count > 0

    async def close(self) -> None:
        """Release its connections or its process."""
        under_way = [task for task in (self.greeting, self.control) if task is not None]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self.transport.close()

    def reach(self, transport: Transport) -> None:
        """From the next call on it is reached over this."""
        self.transport = self.handshake.transport = transport

    def look(self) -> None:
        """Something about it has changed, or may have: see whether it is at hand."""
        self.at_hand = self.held_until is None and self.ejected_until is None and not self.handshake.forgotten

    def __repr__(self) -> str:
        state = "ejected" if self.ejected_until is not None else "held" if self.held_until is not None else "in use"
        return f"<Replica {self.label} {state}, {self.in_flight} in flight, {self.failures} failures in a row>"


Told = Callable[[Replica, LegError | None], None]
"""Hears of a replica that is ejected (why) and of one that is back (None)."""


class Replicas:
    """All replicas of one engine, at least one. `chance` gives numbers from 0 up to 1."""

    __slots__ = ("_all", "_chance", "_rules", "_told", "_unsettled", "lone")

    def __init__(self, replicas: Sequence[Replica], rules: EjectionRules, chance: Callable[[], float], told: Told):
        self._all = tuple(replicas)
        self._rules = rules
        self._chance = chance
        self._told = told
        self._unsettled = True
        self.lone = self._all[0] if len(self._all) == 1 else None

    def renew(self, replicas: Sequence[Replica], rules: EjectionRules) -> None:
        """Other addresses or rules; what is known of a replica that stays is kept."""
        self._all = tuple(replicas)
        self._rules = rules
        self._unsettled = True
        self.lone = self._all[0] if len(self._all) == 1 else None
        if self.lone is not None:
            self.lone.ejected_until = None  # the last one is never left out
            self.lone.look()

    @property
    def all(self) -> Sequence[Replica]:
        """In the order of the registry entry."""
        return self._all

    def named(self, label: str | None) -> Replica | None:
        """The replica of this label."""
        return next((replica for replica in self._all if replica.label == label), None)

    def choose(self, now: float, avoid: Replica | None = None) -> Replica | None:
        """Who is asked next, if possible not `avoid`; None while all have asked to be left alone."""
        if self._unsettled:
            self._settle(now)
        at_rest = self._unsettled
        open_ = [replica for replica in self._all if replica.held_until is None] if at_rest else self._all
        usable = [replica for replica in open_ if replica.ejected_until is None] if at_rest else open_
        if at_rest:
            # A replica that has not shaken hands may not be there yet: the others are asked as long as there are any.
            usable = [replica for replica in usable if replica.greeted] or usable
        usable = usable or open_
        if avoid is not None and len(usable) > 1:
            usable = [replica for replica in usable if replica is not avoid]
        if len(usable) < 2:
            return usable[0] if usable else None
        return self._better_of_two([replica for replica in usable if self._has_its_turn(replica, now)] or usable)

    def held_for(self, now: float) -> float | None:
        """Seconds until one may be asked again, if all have asked to be left alone."""
        waits = [replica.held_until - now for replica in self._all if replica.held_until is not None]
        return max(0.0, min(waits)) if len(waits) == len(self._all) and min(waits) > 0 else None

    def hold(self, replica: Replica, now: float, seconds: float) -> None:
        """It asked to be left alone for so long."""
        replica.held_until = now + min(seconds, LONGEST_SECONDS)
        replica.look()
        self._unsettled = True

    def succeeded(self, replica: Replica) -> None:
        """It answered."""
        replica.failures = 0
        if replica.back_since is None:
            replica.ejections = 0

    def failed(self, replica: Replica, fault: LegError, now: float) -> None:
        """It failed; the last that is in use stays so, whatever it does."""
        replica.failures += 1
        limit = self._rules.failures
        if self.lone is not None or not limit or replica.failures < limit or replica.ejected_until is not None:
            return
        if all(other.ejected_until is not None for other in self._all if other is not replica):
            return
        replica.ejected_until = now + min(self._rules.seconds * 2.0**replica.ejections, LONGEST_SECONDS)
        replica.ejections = min(replica.ejections + 1, 16)
        replica.back_since = None
        replica.look()
        replica.transport.renew()
        self._unsettled = True
        self._told(replica, fault)

    def reset(self) -> None:
        """Forget what went wrong."""
        for replica in self._all:
            replica.failures = replica.ejections = 0
            replica.ejected_until = replica.held_until = replica.back_since = None
            replica.look()
        self._unsettled = True

    def _settle(self, now: float) -> None:
        """Let back in whose time is over."""
        for replica in self._all:
            if replica.held_until is not None and now >= replica.held_until:
                replica.held_until = None
            if replica.ejected_until is not None and now >= replica.ejected_until:
                replica.ejected_until = None
                replica.back_since = now
                replica.failures = self._rules.failures - 1  # one more, and it is out again
                self._told(replica, None)
            if replica.back_since is not None and now >= replica.back_since + self._rules.slow_start:
                replica.back_since = None
            replica.look()
        self._unsettled = any(
            replica.held_until is not None
            or replica.ejected_until is not None
            or replica.back_since is not None
            or not replica.greeted
            for replica in self._all
        )

    def _has_its_turn(self, replica: Replica, now: float) -> bool:
        if replica.back_since is None:
            return True
        return self._chance() < max(LEAST_SHARE, (now - replica.back_since) / self._rules.slow_start)

    def _better_of_two(self, usable: Sequence[Replica]) -> Replica:
        first = int(self._chance() * len(usable))
        if len(usable) == 1:
            return usable[0]
        second = int(self._chance() * (len(usable) - 1))
        one, other = usable[first], usable[second + (second >= first)]
        return one if one.in_flight <= other.in_flight else other

    def __repr__(self) -> str:
        return f"<Replicas {', '.join(map(repr, self._all))}>"
