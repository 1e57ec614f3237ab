"""A storm of one kind of event is cut short and summed up; everything else is written as ever."""

import asyncio

import pytest

from app.telemetry.log_rate_limit import UNLIMITED, LogAllowance, LogRateLimit


class Told:
    """A rate limit of 3 lines in 10 seconds, by a clock that the test sets; what is told is in `lines`."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.now = 100.0
        self.lines: list[tuple[str, int]] = []
        self.rate_limit = LogRateLimit(
            LogAllowance(3, seconds, lambda: self.now), lambda *line: self.lines.append(line)
        )

    def written(self, kind: str, times: int) -> int:
        """How many of so many lines go through now."""
        return sum(self.rate_limit.admits(kind) for _ in range(times))


def test_a_storm_is_cut_short() -> None:
    """As many lines as are allowed, then as many as the time gives back, and never more than that at once."""
    told = Told()
    assert told.written("refused", 50) == 3
    told.now += 3.4
    assert told.written("refused", 50) == 1
    told.now += 1000
    assert told.written("refused", 50) == 3


def test_kinds_do_not_take_from_each_other() -> None:
    """A storm of one kind leaves every other kind its lines."""
    told = Told()
    told.written("refused", 50)
    assert told.written("slow_caller", 2) == 2


@pytest.mark.parametrize("kind", sorted(UNLIMITED))
def test_records_are_never_dropped(kind: str) -> None:
    """Who did what, and how the gateway came and went, is written every time."""
    assert Told().written(kind, 500) == 500


def test_dropped_lines_are_reported_once_a_period() -> None:
    """Whatever line comes first after the stretch brings the number with it, and it is told once."""
    told = Told()
    told.written("refused", 50)
    told.now += 9.9
    told.written("request", 1)
    assert told.lines == []
    told.now += 0.2
    told.written("request", 2)
    assert told.lines == [("refused", 47)]


def test_a_permanent_storm_adds_up() -> None:
    """Every line is either written or counted, however long it lasts."""
    told = Told()
    written = 0
    for _ in range(1000):
        written += told.written("refused", 1)
        told.now += 0.5
    told.written("stopped", 1)
    assert written + sum(count for _, count in told.lines) == 1000
    assert 45 <= len(told.lines) <= 52


def test_stopping_tells_the_rest() -> None:
    """A gateway that stops leaves no number untold."""
    told = Told()
    told.written("refused", 4)
    told.written("slow_caller", 5)
    told.written("stopped", 1)
    assert told.lines == [("refused", 1), ("slow_caller", 2)]


async def test_silence_tells_too() -> None:
    """When no line follows the storm, the number comes by itself at the end of the stretch."""
    told = Told(seconds=0.01)
    told.written("refused", 5)
    told.now += 0.01
    async with asyncio.timeout(10):
        while not told.lines:
            await asyncio.sleep(0.005)
    assert told.lines == [("refused", 2)]


def test_a_rate_limit_can_be_read() -> None:
    """The representation says what is allowed, and what is being dropped."""
    told = Told()
    told.written("refused", 5)
    assert repr(told.rate_limit) == "<LogRateLimit: 3 lines a kind in 10 s, now dropping ['refused']>"
    assert repr(told.rate_limit._kinds["refused"]) == "<_Kind with 0.0 tokens, 2 lines dropped>"
