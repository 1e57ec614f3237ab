"""A circuit breaker as a state machine. Pure: outcomes and times are passed in.

state       what happens                  becomes
closed      too many failures             open, for the cool-down
open        a call after the cool-down    half-open: this call, the probe, is admitted
half-open   the probe succeeds            closed
half-open   the probe fails               open, for twice the cool-down, up to the maximum
half-open   the probe is inconclusive     open, with the cool-down over
"""

from dataclasses import dataclass
from typing import Final

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"
STATES: Final = (CLOSED, OPEN, HALF_OPEN)


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """What opens a breaker and for how long."""

    failures: int = 5
    """Failures in a row that open it; 0: never."""
    window: int = 20
    """How many of the last outcomes are looked back at …"""
    share: float = 0.5
    """… and which share of failures among them opens it. A window not yet full counts as filled with successes."""
    open_seconds: float = 1.0
    """The first cool-down; each failed probe doubles it …"""
    longest_seconds: float = 60.0
    """… up to this."""


class Breaker:
    """One breaker. Each call is admitted with a generation and hands it back with its outcome.

    An outcome of an older generation says nothing: a success that started before the breaker opened does not close it.
    """

    __slots__ = ("_bits", "_cool_down", "_mask", "_row", "_until", "closed", "generation", "marked", "rules", "state")

    def __init__(self, rules: BreakerRules) -> None:
        self.state = CLOSED
        self.closed = True
        """Whether `state` is CLOSED; an attribute, because it is read for every call."""
        self.marked = False
        """Whether a success would change anything."""
        self.generation = 0
        """Of the calls admitted now."""
        self.rules = rules
        self._mask = (1 << rules.window) - 1
        self._bits = 0
        self._row = 0
        self._cool_down = min(rules.open_seconds, rules.longest_seconds)
        self._until = 0.0

    @property
    def failures(self) -> int:
        """Failures among the last outcomes, as far as the window goes."""
        return self._bits.bit_count()

    def retry_in(self, now: float) -> float | None:
        """Seconds until the next probe may go, at least 0; None if calls are admitted or a probe could go now.

        While a probe is under way it is the cool-down that a failure would bring.
        """
        if self.state == OPEN and now < self._until:
            return self._until - now
        return self._next_cool_down() if self.state == HALF_OPEN else None

    def admit(self, now: float) -> int | None:
        """The generation of a call that may go now, None if none may. Call it only if the call does go."""
        if self.closed:
            return self.generation
        if self.state == HALF_OPEN or now < self._until:
            return None
        self.generation += 1
        self.state = HALF_OPEN
        return self.generation

    def succeeded(self, generation: int) -> bool:
        """A call was answered. Says whether that closed the breaker."""
        if generation != self.generation:
            return False
        self._row = 0
        if self.closed:
            self._bits = (self._bits << 1) & self._mask
            self.marked = self._bits != 0
            return False
        self.reset()
        return True

    def failed(self, generation: int, now: float) -> bool:
        """A call failed in a way that counts. Says whether that opened the breaker."""
        if generation != self.generation or not self.rules.failures:
            return False
        if not self.closed:
            self._cool_down = self._next_cool_down()
            self._open(now + self._cool_down)
            return True
        self._row += 1
        self._bits = (self._bits << 1 | 1) & self._mask
        self.marked = True
        if self._row < self.rules.failures and self.failures < self.rules.share * self.rules.window:
            return False
        self._open(now + self._cool_down)
        return True

    def inconclusive(self, generation: int, now: float) -> None:
        """A call ended in a way that says nothing: if it was the probe, the next call is one."""
        if self.state == HALF_OPEN and generation == self.generation:
            self._open(now)

    def reset(self) -> None:
        """Close it and forget what went wrong; calls under way say nothing any more."""
        self.state = CLOSED
        self.closed = True
        self.marked = False
        self.generation += 1
        self._bits = self._row = 0
        self._cool_down = min(self.rules.open_seconds, self.rules.longest_seconds)

    def renew(self, rules: BreakerRules) -> None:
        """Apply other rules from the next outcome on; what was counted stays counted."""
        self.rules = rules
        self._mask = (1 << rules.window) - 1
        self._bits &= self._mask
        self.marked = self._bits != 0 or self._row != 0
        if self.closed:
            self._cool_down = min(rules.open_seconds, rules.longest_seconds)

    def _open(self, until: float) -> None:
        self.state = OPEN
        self.closed = False
        self.generation += 1
        self._until = until

    def _next_cool_down(self) -> float:
        return min(self._cool_down * 2, self.rules.longest_seconds)

    def __repr__(self) -> str:
        until = f" until {self._until:.1f}" if self.state == OPEN else ""
        last = f"{self.failures} failures in the last {self.rules.window}"
        return f"<Breaker {self.state}{until}, {last}, {self._row} in a row, cool-down {self._cool_down:g} s>"
