"""How each engine did in the last minutes: calls, failures and how long they took, in a ring of short slots.

Telemetry room. It decides how coarse the numbers are: a few integers per call, and never more than one ring per engine
however much is asked. The clock is handed in, in seconds. It refuses to know what was asked, and who looks.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from app.telemetry.series import Buckets

SLOT_SECONDS: Final = 10
SLOTS: Final = 30
"""Slots of one ring: five minutes."""

MAX_ENGINES: Final = 1000
"""Engines whose windows are kept; of more, the longest known go first: engines of others come and go."""

STEP: Final = 1.25
"""From one bound to the next: a percentile is at most a quarter too long, and never too short."""

BOUNDS: tuple[float, ...] = tuple(0.001 * STEP**power for power in range(60))
"""Upper bounds of durations in seconds, from a millisecond to some nine minutes."""

_SCALE: Final = Buckets(BOUNDS)


class Slot:
    """The calls of a few seconds."""

    __slots__ = ("counts", "failed", "number", "skipped")

    def __init__(self) -> None:
        self.restart(-1)

    def restart(self, number: int) -> None:
        """From here on it stands for the slot with this number, in which nothing has happened."""
        self.number = number
        self.failed = 0
        self.skipped: dict[str, int] = {}
        self.counts = [0] * (len(BOUNDS) + 1)

    def __repr__(self) -> str:
        return f"<Slot {self.number}: {sum(self.counts)} calls, {self.failed} failed>"


class RollingSummary(NamedTuple):
    """What came of the calls of a stretch of time; durations in milliseconds, None where nobody called.

    `skipped`: by reason, the calls that were never sent. They are no part of the other numbers.
    """

    calls: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    skipped: Mapping[str, int] = MappingProxyType({})


class LastFault(NamedTuple):
    """The latest failure: its class, its text, and when, in seconds of the clock that was handed in."""

    kind: str
    detail: str
    at: float


class RollingWindow:
    """One engine's last minutes."""

    __slots__ = ("_slots", "fault")

    def __init__(self) -> None:
        self._slots = [Slot() for _ in range(SLOTS)]
        self.fault: LastFault | None = None

    def add(self, now: float, took: float, failed: bool) -> None:
        """A call ended at `now` after `took` seconds."""
        slot = self._current(now)
        slot.counts[_SCALE.place(took)] += 1
        if failed:
            slot.failed += 1

    def skip(self, now: float, reason: str) -> None:
        """A call was not sent at `now`. It has no duration: the engine never saw it."""
        skipped = self._current(now).skipped
        skipped[reason] = skipped.get(reason, 0) + 1

    def whole(self, now: float) -> RollingSummary:
        """The last five minutes as one."""
        return _stretch(self._recent(now))

    def slots(self, now: float) -> list[RollingSummary]:
        """The last five minutes slot by slot, the oldest first."""
        return [_stretch([slot] if slot.number >= 0 else []) for slot in self._in_order(now)]

    def _current(self, now: float) -> Slot:
        number = int(now // SLOT_SECONDS)
        slot = self._slots[number % SLOTS]
        if slot.number != number:
            slot.restart(number)
        return slot

    def _in_order(self, now: float) -> list[Slot]:
        last = int(now // SLOT_SECONDS)
        found = []
        for number in range(last - SLOTS + 1, last + 1):
            slot = self._slots[number % SLOTS]
            found.append(slot if slot.number == number else _NOTHING)
        return found

    def _recent(self, now: float) -> list[Slot]:
        return [slot for slot in self._in_order(now) if slot is not _NOTHING]

    def __repr__(self) -> str:
        latest = max(self._slots, key=lambda slot: slot.number)
        return f"<Window, latest {latest!r}, {self.fault.kind if self.fault else 'no fault'}>"


class RollingStatistics:
    """The last minutes of every engine. `clock` gives seconds and never goes back."""

    __slots__ = ("_by_engine", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._by_engine: dict[str, RollingWindow] = {}

    def ended(self, engine: str, took: float) -> None:
        """A call was answered after `took` seconds."""
        window = self._by_engine.get(engine) or self._opened(engine)
        window.add(self.clock(), took, False)

    def failed(self, engine: str, took: float, kind: str, detail: str) -> None:
        """A call failed after `took` seconds."""
        now = self.clock()
        window = self._by_engine.get(engine) or self._opened(engine)
        window.add(now, took, True)
        window.fault = LastFault(kind, detail, now)

    def skipped(self, engine: str, reason: str) -> None:
        """A call was not sent: the last fault of one that was stays what it is."""
        window = self._by_engine.get(engine) or self._opened(engine)
        window.skip(self.clock(), reason)

    def of(self, engine: str) -> RollingWindow:
        """The window of one engine; an empty one of nobody's if it was never called."""
        return self._by_engine.get(engine) or RollingWindow()

    def _opened(self, engine: str) -> RollingWindow:
        if len(self._by_engine) >= MAX_ENGINES:
            del self._by_engine[next(iter(self._by_engine))]
        window = self._by_engine[engine] = RollingWindow()
        return window

    def forget(self, keep: Sequence[str]) -> None:
        """Let go of the windows of engines that are not among these."""
        for engine in set(self._by_engine).difference(keep):
            del self._by_engine[engine]

    def __repr__(self) -> str:
        return f"<Windows of {len(self._by_engine)} engines>"


_NOTHING = Slot()


def _stretch(slots: Sequence[Slot]) -> RollingSummary:
    counts = [sum(column) for column in zip(*(slot.counts for slot in slots), strict=True)]
    calls = sum(counts)
    skipped: Counter[str] = Counter()
    for slot in slots:
        skipped.update(slot.skipped)
    return RollingSummary(
        calls=calls,
        failed=sum(slot.failed for slot in slots),
        p50_ms=_percentile(counts, calls, 50),
        p95_ms=_percentile(counts, calls, 95),
        skipped=dict(sorted(skipped.items())),
    )


def _percentile(counts: Sequence[int], calls: int, percent: int) -> float | None:
    """The bound, in milliseconds, that at least so many per cent of the calls kept to."""
    if not calls:
        return None
    needed = -(-calls * percent // 100)
    for bound, count in zip(BOUNDS, counts, strict=False):
        needed -= count
        if needed <= 0:
            return round(bound * 1000, 2)
    return round(BOUNDS[-1] * STEP * 1000, 2)
