"""The breaker as a table: what opens it, what closes it, and that half-open lets exactly one call through."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from app.resilience.breaker import CLOSED, HALF_OPEN, OPEN, Breaker, BreakerRules

RULES = BreakerRules(failures=3, window=10, share=0.5, open_seconds=1.0, longest_seconds=8.0)


def opened(rules: BreakerRules = RULES, now: float = 100.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(rules)
    for _ in range(rules.failures):
        breaker.failed(breaker.generation, now)
    assert breaker.state == OPEN
    return breaker


def admitted(breaker: Breaker, now: float) -> int:
    """The generation of a call that is let through."""
    generation = breaker.admit(now)
    assert generation is not None
    return generation


def test_failures_in_a_row_open_it() -> None:
    """The third failure in a row opens it and says so; a success in between starts the row anew."""
    breaker = Breaker(RULES)
    assert [breaker.failed(0, 1.0), breaker.failed(0, 1.0), breaker.succeeded(0)] == [False, False, False]
    assert breaker.closed
    assert [breaker.failed(0, 1.0), breaker.failed(0, 1.0), breaker.failed(0, 1.0)] == [False, False, True]
    assert not breaker.closed
    assert repr(breaker) == "<Breaker open until 2.0, 5 failures in the last 10, 3 in a row, cool-down 1 s>"


def test_a_share_of_the_window_opens_it() -> None:
    """Half of the last ten outcomes failing opens it, though never three in a row."""
    breaker = Breaker(RULES)
    told = [breaker.failed(0, 1.0) if step % 2 else breaker.succeeded(0) for step in range(10)]
    assert told == [False] * 9 + [True]
    assert breaker.state == OPEN


def test_old_failures_leave_the_window() -> None:
    """What is longer ago than the window counts no more, and a breaker without marks wants to hear of no success."""
    breaker = Breaker(RULES)
    breaker.failed(0, 1.0)
    assert breaker.marked
    for _ in range(10):
        breaker.succeeded(0)
    assert breaker.failures == 0
    assert not breaker.marked


def test_nothing_goes_while_it_is_open() -> None:
    """Until the cool-down is over nobody is admitted, and everybody is told how long that is."""
    breaker = opened()
    assert breaker.admit(100.999) is None
    assert breaker.retry_in(100.25) == 0.75
    assert breaker.retry_in(101.0) is None


def test_one_probe_at_a_time() -> None:
    """Of fifty calls after the cool-down exactly one goes, and the others are told of the next time (B45)."""
    breaker = opened()
    admissions = [breaker.admit(101.0) for _ in range(50)]
    assert [admission is not None for admission in admissions] == [True] + [False] * 49
    assert breaker.state == HALF_OPEN
    assert breaker.retry_in(101.0) == 2.0


def test_probe_that_succeeds_closes_it() -> None:
    """The engine is well again, all is forgotten, and the next cool-down is the first one."""
    breaker = opened()
    assert breaker.succeeded(admitted(breaker, 101.0))
    assert (breaker.state, breaker.failures, breaker.retry_in(101.0)) == (CLOSED, 0, None)
    for _ in range(3):
        breaker.failed(breaker.generation, 200.0)
    assert breaker.retry_in(200.0) == 1.0


def test_probes_that_fail_lengthen_the_cool_down() -> None:
    """Each failed probe doubles the cool-down, up to the longest (B47)."""
    breaker, now, waits = opened(), 100.0, []
    for _ in range(6):
        wait = breaker.retry_in(now)
        assert wait is not None
        waits.append(wait)
        now += wait
        assert breaker.failed(admitted(breaker, now), now)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_probe_that_says_nothing_frees_its_place() -> None:
    """A probe that is cancelled or refused leaves the next call to be the probe, at once (B43)."""
    breaker = opened()
    for now in (101.0, 101.1, 101.2):
        generation = admitted(breaker, now)
        assert breaker.admit(now) is None
        breaker.inconclusive(generation, now)
    assert breaker.succeeded(admitted(breaker, 101.3))


def test_success_from_before_says_nothing() -> None:
    """A call that began before the breaker opened neither closes it nor takes the probe's place."""
    breaker = opened()
    assert not breaker.succeeded(0)
    assert not breaker.failed(0, 100.5)
    breaker.inconclusive(0, 100.5)
    assert (breaker.state, breaker.retry_in(100.5)) == (OPEN, 0.5)
    probe = admitted(breaker, 101.0)
    assert not breaker.succeeded(0)
    assert breaker.state == HALF_OPEN
    assert breaker.succeeded(probe)
    assert not breaker.failed(0, 101.0)
    assert breaker.failures == 0


def test_reset_closes_it() -> None:
    """An operator may close it; calls under way then say nothing."""
    breaker = opened()
    probe = admitted(breaker, 101.0)
    breaker.reset()
    assert breaker.closed
    assert not breaker.failed(probe, 102.0)
    assert breaker.failures == 0


def test_breaker_that_is_off_never_opens() -> None:
    """With 0 failures it stays closed, whatever happens."""
    breaker = Breaker(BreakerRules(failures=0))
    assert not any(breaker.failed(0, 1.0) for _ in range(1000))
    assert breaker.closed
    assert not breaker.marked


STEPS = some.lists(
    some.tuples(some.sampled_from(["admit", "ok", "fail", "nothing"]), some.integers(0, 5), some.floats(0, 3)),
    max_size=80,
)


@given(STEPS)
@pytest.mark.parametrize("failures", [1, 3])
def test_whatever_happens_it_can_always_close_again(failures: int, steps: list[tuple[str, int, float]]) -> None:
    """Never two probes at once, never stuck: once nothing is under way, a probe goes within the longest cool-down."""
    breaker = Breaker(BreakerRules(failures=failures, window=4, open_seconds=1.0, longest_seconds=8.0))
    now, under_way = 100.0, list[tuple[int, bool]]()
    for step, which, wait in steps:
        now += wait
        if step == "admit":
            half_open = breaker.state == HALF_OPEN
            generation = breaker.admit(now)
            assert not (half_open and generation is not None)
            if generation is not None:
                under_way.append((generation, breaker.state == HALF_OPEN))
        elif under_way:
            generation, _ = under_way.pop(which % len(under_way))
            if step == "ok":
                breaker.succeeded(generation)
            elif step == "fail":
                breaker.failed(generation, now)
            else:
                breaker.inconclusive(generation, now)
        assert breaker.closed == (breaker.state == CLOSED)
    for generation, _ in under_way:
        breaker.inconclusive(generation, now)
    probe = breaker.admit(now + 8.0)
    assert probe is not None
    breaker.succeeded(probe)
    assert breaker.closed
