"""How often an event may be logged: so many lines of one kind in so many seconds, and one line for all left out.

Telemetry room. It decides which lines are left out, so that a caller or an engine that misbehaves fills no disk and
hides nothing else. Lines that are a record of what was done are never limited. It refuses to know how a line looks.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

STARTING = frozenset(
    {"settings", "tenants", "listening", "started", "worker_serves", "worker_ended", "no_worker_serves"}
)
STOPPING = frozenset({"draining", "finishing", "drained", "cut_off", "stopped"})
RECORDS = frozenset({"request", "mcp", "admin_action", "reloaded", "reload_failed", "restart_needed"})

UNLIMITED = STARTING | STOPPING | RECORDS
"""Kinds of which every line is written: who did what, and how the gateway came and went."""


class LogAllowance(NamedTuple):
    """Most lines of one kind in a stretch of seconds, and the clock that measures it: seconds, never going back."""

    lines: int
    seconds: float
    clock: Callable[[], float]


class _Kind:
    """One kind of event: how many lines it may still have, and how many were left out since when."""

    __slots__ = ("at", "left_out", "since", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at
        self.left_out = 0
        self.since = 0.0

    def __repr__(self) -> str:
        return f"<_Kind with {self.tokens:.1f} tokens, {self.left_out} lines left out>"


class LogRateLimit:
    """Lets lines through or leaves them out: a token bucket a kind. `tell` is given a kind and how many it lost."""

    __slots__ = ("_budget", "_kinds", "_left_out", "_tell")

    def __init__(self, budget: LogAllowance, tell: Callable[[str, int], object]) -> None:
        self._budget = budget
        self._tell = tell
        self._kinds: dict[str, _Kind] = {}
        self._left_out: set[str] = set()

    def admits(self, kind: str) -> bool:
        """Whether a line of this kind is to be written now. Tells first of earlier ones whose time is over."""
        if self._left_out:
            self._tell_due(everything=kind in STOPPING)
        return kind in UNLIMITED or self._taken(kind)

    def _tell_due(self, *, everything: bool) -> None:
        """Tell what was left out of the kinds whose stretch is over, or of every kind."""
        over = self._budget.clock() - self._budget.seconds
        for name in sorted(self._left_out):
            if everything or self._kinds[name].since <= over:
                self._tell_of(name)

    def _tell_of(self, name: str) -> None:
        if name in self._left_out:
            self._left_out.discard(name)
            kind = self._kinds[name]
            count, kind.left_out = kind.left_out, 0
            self._tell(name, count)

    def _taken(self, name: str) -> bool:
        lines, seconds, clock = self._budget
        now = clock()
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _Kind(lines, now)
        kind.tokens = min(lines, kind.tokens + (now - kind.at) * lines / seconds)
        kind.at = now
        if kind.tokens >= 1:
            kind.tokens -= 1
            return True
        self._leave_out(name, kind, now)
        return False

    def _leave_out(self, name: str, kind: _Kind, now: float) -> None:
        kind.left_out += 1
        if name not in self._left_out:
            kind.since = now
            self._left_out.add(name)
            with suppress(RuntimeError):  # no loop in this thread: the next line tells
                asyncio.get_running_loop().call_later(self._budget.seconds, self._tell_of, name)

    def __repr__(self) -> str:
        lines, seconds, _ = self._budget
        return f"<Storms: {lines} lines a kind in {seconds:g} s, now leaving out {sorted(self._left_out)}>"
