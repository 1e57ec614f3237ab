"""The last minutes of an engine: counts and percentiles slot by slot, and nothing older."""

import pytest

from app.telemetry.rolling import MAX_ENGINES, SLOT_SECONDS, SLOTS, STEP, RollingStatistics, RollingWindow, Slot


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_percentiles_are_never_too_short_and_at_most_a_step_too_long() -> None:
    """p50 and p95 are the upper bounds of their buckets."""
    window = RollingWindow()
    for place in range(100):
        window.add(1000.0, 0.010 if place < 90 else 0.400, False)
    whole = window.whole(1000.0)
    assert whole.calls == 100
    assert 10 <= (whole.p50_ms or 0) <= 10 * STEP
    assert 400 <= (whole.p95_ms or 0) <= 400 * STEP


@pytest.mark.parametrize("took", [0.0, 1e-6, 3600.0])
def test_extreme_durations_are_counted(took: float) -> None:
    """What is shorter or longer than any bound still counts."""
    window = RollingWindow()
    window.add(1000.0, took, False)
    assert window.whole(1000.0).calls == 1
    assert window.whole(1000.0).p50_ms is not None


def test_failures_are_counted_beside_calls() -> None:
    """The share of errors is failed over calls."""
    window = RollingWindow()
    for failed in (True, False, False, True):
        window.add(1000.0, 0.01, failed)
    assert window.whole(1000.0)[:2] == (4, 2)


def test_what_is_older_than_the_ring_is_gone() -> None:
    """After five minutes a call is told no more, also where nothing came after it."""
    window = RollingWindow()
    window.add(1000.0, 0.01, True)
    assert window.whole(1000.0 + SLOT_SECONDS * (SLOTS - 1)).calls == 1
    assert window.whole(1000.0 + SLOT_SECONDS * SLOTS) == (0, 0, None, None, {})


def test_slots_are_in_order_and_empty_where_nobody_called() -> None:
    """The oldest slot is the first, the current one the last."""
    window = RollingWindow()
    window.add(1000.0, 0.01, False)
    window.add(1000.0 + 2 * SLOT_SECONDS, 0.01, True)
    slots = window.slots(1000.0 + 2 * SLOT_SECONDS)
    assert len(slots) == SLOTS
    assert [slot.calls for slot in slots[-3:]] == [1, 0, 1]
    assert slots[-2].p50_ms is None
    assert sum(slot.calls for slot in slots) == 2


def test_the_ring_is_used_anew() -> None:
    """A slot whose number comes round again forgets what it held."""
    window = RollingWindow()
    window.add(1000.0, 0.01, True)
    later = 1000.0 + SLOT_SECONDS * SLOTS
    window.add(later, 0.01, False)
    assert window.whole(later)[:2] == (1, 0)


def test_each_engine_has_its_own() -> None:
    """Calls of one engine do not count for another, and the last failure is remembered with its time."""
    clock = Clock()
    windows = RollingStatistics(clock)
    windows.ended("docs", 0.01)
    windows.failed("code", 2.0, "timeout", "no answer")
    clock.now += 5
    assert windows.of("docs").whole(clock.now)[:2] == (1, 0)
    assert windows.of("code").whole(clock.now)[:2] == (1, 1)
    fault = windows.of("code").fault
    assert fault is not None
    assert (fault.kind, fault.detail, clock.now - fault.at) == ("timeout", "no answer", 5)
    assert windows.of("nobody").whole(clock.now).calls == 0


def test_engines_that_left_are_forgotten() -> None:
    """Only the windows of engines that are still there are kept."""
    windows = RollingStatistics(Clock())
    windows.ended("docs", 0.01)
    windows.ended("code", 0.01)
    windows.forget(["code"])
    assert repr(windows) == "<RollingStatistics of 1 engines>"
    assert windows.of("docs").whole(1000.0).calls == 0


def test_windows_are_bounded() -> None:
    """However many engines come and go, no more than so many windows are kept; the newest is."""
    windows = RollingStatistics(Clock())
    for place in range(MAX_ENGINES + 5):
        windows.ended(f"engine-{place}", 0.01)
    assert repr(windows) == f"<RollingStatistics of {MAX_ENGINES} engines>"
    assert windows.of(f"engine-{MAX_ENGINES + 4}").whole(1000.0).calls == 1


def test_an_incident_can_be_read() -> None:
    """What a person sees of a window: the latest slot and the last fault."""
    clock = Clock()
    windows = RollingStatistics(clock)
    windows.failed("docs", 0.1, "connect", "refused")
    assert repr(windows.of("docs")) == "<RollingWindow, latest <Slot 100: 1 calls, 1 failed>, connect>"
    assert repr(Slot()) == "<Slot -1: 0 calls, 0 failed>"
