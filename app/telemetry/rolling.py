"""Rolling statistics of the last five minutes: calls, failures and durations of each engine, in a ring of short slots.
Durations of the hour before are kept in long slots, to compare with.

A call costs a few integers; memory is one ring per engine, however many calls there are. The console shows them.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from app.telemetry.series import Buckets

SLOT_SECONDS: Final = 10
SLOTS: Final = 30
"""Slots of one ring, five minutes in all."""

HOUR_SLOTS: Final = 12
"""Long slots, of SLOTS short ones each: an hour in all."""

MAX_ENGINES: Final = 1000
"""Engines whose windows are kept. Discovered engines come and go, so beyond this limit the oldest are dropped."""

STEP: Final = 1.25
"""Ratio of adjacent bounds: a percentile is at most a quarter too long, and never too short."""

BOUNDS: tuple[float, ...] = tuple(0.001 * STEP**power for power in range(60))
"""Upper bounds of durations in seconds, from a millisecond to about nine minutes."""

_BUCKETS: Final = Buckets(BOUNDS)


class Slot:
    """The calls of SLOT_SECONDS."""

    __slots__ = ("counts", "failed", "number", "skipped")

    def __init__(self) -> None:
        self.restart(-1)

    def restart(self, number: int) -> None:
        """Reuse it, empty, for the slot with this number (seconds since the clock's zero, divided by SLOT_SECONDS)."""
        self.number = number
        self.failed = 0
        self.skipped: dict[str, int] = {}
        self.counts = [0] * (len(BOUNDS) + 1)

    def __repr__(self) -> str:
        return f"<Slot {self.number}: {sum(self.counts)} calls, {self.failed} failed>"


class RollingSummary(NamedTuple):
    """The calls of a period; durations in milliseconds, None without calls.

    `skipped` counts calls that were never sent, by reason. The other numbers do not include them.
    """

    calls: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    skipped: Mapping[str, int] = MappingProxyType({})


class LastFault(NamedTuple):
    """The latest failure: its class, its text, and when it happened, in seconds of the clock."""

    kind: str
    detail: str
    at: float


class RollingWindow:
    """The last five minutes of one engine, and the durations of the hour before."""

    __slots__ = ("_hour", "_slots", "fault")

    def __init__(self) -> None:
        self._slots = [Slot() for _ in range(SLOTS)]
        self._hour: dict[int, list[int]] = {}
        """Number of a long slot -> calls by duration."""
        self.fault: LastFault | None = None

    def add(self, now: float, took: float, failed: bool) -> None:
        """Count a call that ended at `now` after `took` seconds."""
        slot = self._current(now)
        slot.counts[_BUCKETS.place(took)] += 1
        if failed:
            slot.failed += 1

    def skip(self, now: float, reason: str) -> None:
        """Count a call that was not sent at `now`. It has no duration, since the engine never saw it."""
        skipped = self._current(now).skipped
        skipped[reason] = skipped.get(reason, 0) + 1

    def whole(self, now: float) -> RollingSummary:
        """The last five minutes as one."""
        slots = [slot for slot in self._in_order(now) if slot is not _NOTHING]
        skipped: Counter[str] = Counter()
        for slot in slots:
            skipped.update(slot.skipped)
        counts = list(map(sum, zip(*(slot.counts for slot in slots), strict=True)))
        return _summary(counts, sum(slot.failed for slot in slots), skipped)

    def slots(self, now: float) -> list[RollingSummary]:
        """The last five minutes slot by slot, the oldest first."""
        # Most slots of most engines are empty, and the console reads 30 of each of 300 engines at once.
        return [
            _NO_CALLS if slot is _NOTHING else _summary(slot.counts, slot.failed, slot.skipped)
            for slot in self._in_order(now)
        ]

    def hour_before(self, now: float) -> RollingSummary:
        """Durations of about an hour, without the last five minutes; calls that failed count like others."""
        last = int(now // SLOT_SECONDS)
        first = last // SLOTS - HOUR_SLOTS
        rows = [counts for number, counts in self._hour.items() if number >= first]
        # Short slots that nobody has reused yet are as old as the hour.
        rows += [
            slot.counts
            for slot in self._slots
            if last // SLOTS - HOUR_SLOTS <= slot.number // SLOTS and slot.number <= last - SLOTS
        ]
        return _summary(list(map(sum, zip(*rows, strict=True))) if rows else [0], 0, {})

    def _current(self, now: float) -> Slot:
        number = int(now // SLOT_SECONDS)
        slot = self._slots[number % SLOTS]
        if slot.number != number:
            self._keep(slot)
            slot.restart(number)
        return slot

    def _keep(self, slot: Slot) -> None:
        """Add a short slot that is about to be reused to its long one. Costs nothing per call."""
        if slot.number < 0:
            return
        long = slot.number // SLOTS
        counts = self._hour.get(long)
        if counts is None:
            self._hour[long] = slot.counts
            for number in [number for number in self._hour if number < long - HOUR_SLOTS]:
                del self._hour[number]
        else:
            self._hour[long] = [before + more for before, more in zip(counts, slot.counts, strict=True)]

    def _in_order(self, now: float) -> list[Slot]:
        last = int(now // SLOT_SECONDS)
        found = []
        for number in range(last - SLOTS + 1, last + 1):
            slot = self._slots[number % SLOTS]
            found.append(slot if slot.number == number else _NOTHING)
        return found

    def __repr__(self) -> str:
        latest = max(self._slots, key=lambda slot: slot.number)
        return f"<RollingWindow, latest {latest!r}, {self.fault.kind if self.fault else 'no fault'}>"


class RollingStatistics:
    """The last five minutes of every engine. `clock` gives seconds and never goes back."""

    __slots__ = ("_by_engine", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._by_engine: dict[str, RollingWindow] = {}

    def ended(self, engine: str, took: float) -> None:
        """Count a call that was answered after `took` seconds."""
        window = self._by_engine.get(engine) or self._opened(engine)
        window.add(self.clock(), took, False)

    def failed(self, engine: str, took: float, kind: str, detail: str) -> None:
        """Count a call that failed after `took` seconds, and remember why."""
        now = self.clock()
        window = self._by_engine.get(engine) or self._opened(engine)
        window.add(now, took, True)
        window.fault = LastFault(kind, detail, now)

    def skipped(self, engine: str, reason: str) -> None:
        """Count a call that was not sent. It does not replace the last fault, which is that of a call that was sent."""
        window = self._by_engine.get(engine) or self._opened(engine)
        window.skip(self.clock(), reason)

    def of(self, engine: str) -> RollingWindow:
        """The window of one engine; an empty one if it was never called."""
        return self._by_engine.get(engine) or RollingWindow()

    def _opened(self, engine: str) -> RollingWindow:
        if len(self._by_engine) >= MAX_ENGINES:
            del self._by_engine[next(iter(self._by_engine))]
        window = self._by_engine[engine] = RollingWindow()
        return window

    def forget(self, keep: Sequence[str]) -> None:
        """Drop the windows of all engines but these."""
        for engine in set(self._by_engine).difference(keep):
            del self._by_engine[engine]

    def __repr__(self) -> str:
        return f"<RollingStatistics of {len(self._by_engine)} engines>"


_NOTHING = Slot()


_NO_CALLS: Final = RollingSummary(calls=0, failed=0, p50_ms=None, p95_ms=None)


def _summary(counts: Sequence[int], failed: int, skipped: Mapping[str, int]) -> RollingSummary:
    calls = sum(counts)
    return RollingSummary(
        calls=calls,
        failed=failed,
        p50_ms=_percentile(counts, calls, 50),
        p95_ms=_percentile(counts, calls, 95),
        skipped=dict(sorted(skipped.items())),
    )


def _percentile(counts: Sequence[int], calls: int, percent: int) -> float | None:
    """The smallest bound, in milliseconds, that at least this share of the calls did not exceed."""
    if not calls:
        return None
    needed = -(-calls * percent // 100)
    for bound, count in zip(BOUNDS, counts, strict=False):
        needed -= count
        if needed <= 0:
            return round(bound * 1000, 2)
    return round(BOUNDS[-1] * STEP * 1000, 2)
