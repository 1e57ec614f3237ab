"""Limits how often an event is logged, so that a misbehaving caller or engine cannot fill the disk or hide other lines.

Dropped lines are counted, and one line says how many there were. Records of what was done are never limited.
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
"""Events that are always written: who did what, and how the gateway started and stopped."""


class LogAllowance(NamedTuple):
    """Most lines of one kind in a period of `seconds`, and the clock that measures it (monotonic seconds)."""

    lines: int
    seconds: float
    clock: Callable[[], float]


class _Kind:
    """One kind of event: the lines it may still have, and how many were dropped since when."""

    __slots__ = ("at", "dropped", "since", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at
        self.dropped = 0
        self.since = 0.0

    def __repr__(self) -> str:
        return f"<_Kind with {self.tokens:.1f} tokens, {self.dropped} lines dropped>"


class LogRateLimit:
    """Admits or drops lines with a token bucket for each kind. `tell` is called with a kind and its dropped lines."""

    __slots__ = ("_budget", "_dropped", "_kinds", "_tell")

    def __init__(self, budget: LogAllowance, tell: Callable[[str, int], object]) -> None:
        self._budget = budget
        self._tell = tell
        self._kinds: dict[str, _Kind] = {}
        self._dropped: set[str] = set()

    def admits(self, kind: str) -> bool:
        """Whether to write a line of this kind now. Reports earlier dropped lines first, if they are due."""
        if self._dropped:
            self._tell_due(everything=kind in STOPPING)
        return kind in UNLIMITED or self._taken(kind)

    def _tell_due(self, *, everything: bool) -> None:
        """Report dropped lines of the kinds whose period is over, or of every kind."""
        over = self._budget.clock() - self._budget.seconds
        for name in sorted(self._dropped):
            if everything or self._kinds[name].since <= over:
                self._tell_of(name)

    def _tell_of(self, name: str) -> None:
        if name in self._dropped:
            self._dropped.discard(name)
            kind = self._kinds[name]
            count, kind.dropped = kind.dropped, 0
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
        self._drop(name, kind, now)
        return False

    def _drop(self, name: str, kind: _Kind, now: float) -> None:
        kind.dropped += 1
        if name not in self._dropped:
            kind.since = now
            self._dropped.add(name)
            with suppress(RuntimeError):  # no event loop in this thread: the next line reports it
                asyncio.get_running_loop().call_later(self._budget.seconds, self._tell_of, name)

    def __repr__(self) -> str:
        lines, seconds, _ = self._budget
        return f"<LogRateLimit: {lines} lines a kind in {seconds:g} s, now dropping {sorted(self._dropped)}>"
