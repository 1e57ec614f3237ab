"""The replicas of one engine: who is asked, who is left out, never all, and how one comes back."""

import random
from collections import Counter
from typing import Any

import pytest

from app.engines.replicas import LONGEST_SECONDS, EjectionRules, Replica, Replicas
from app.protocol.errors import BadStatus, LegError
from tests.support.fake_engine import FakeTransport

FAULT = BadStatus("HTTP 503", status=503)


class Some:
    """So many replicas, and what was told of them."""

    def __init__(self, count: int, **rules: Any) -> None:
        self.told: list[str] = []
        self.each = [Replica(str(number), FakeTransport(), lambda said: None) for number in range(count)]
        self.all = Replicas(self.each, EjectionRules(**rules), random.Random(7).random, self._hear)

    def _hear(self, replica: Replica, fault: LegError | None) -> None:
        self.told.append(f"{replica.label} {'back' if fault is None else fault.kind}")

    def fail(self, number: int, times: int = 3, now: float = 100.0) -> None:
        for _ in range(times):
            self.all.failed(self.each[number], FAULT, now)

    def shares(self, now: float, draws: int = 2000) -> Counter[str]:
        """How often each is chosen."""
        chosen = (self.all.choose(now) for _ in range(draws))
        return Counter(replica.label for replica in chosen if replica is not None)


def test_a_lone_one_is_always_chosen() -> None:
    """An engine with one address has no choice, whatever that one does."""
    some = Some(1)
    some.fail(0, 100)
    assert some.all.single is some.each[0]
    assert some.all.choose(100.0) is some.each[0]
    assert some.told == []


def test_calls_are_spread() -> None:
    """Replicas that are alike get alike shares."""
    shares = Some(4).shares(100.0)
    assert all(400 < shares[label] < 600 for label in "0123")


def test_the_busier_of_two_is_passed_over() -> None:
    """Of two, the one with fewer calls under way is asked."""
    some = Some(2)
    some.each[0].in_flight = 3
    assert some.shares(100.0) == {"1": 2000}


def test_failures_in_a_row_eject() -> None:
    """Three in a row leave it out; one success in between does not let it come to that."""
    some = Some(3)
    some.fail(0, 2)
    some.all.succeeded(some.each[0])
    some.fail(0, 2)
    assert some.told == []
    some.fail(0, 1)
    assert some.told == ["0 http_status"]
    assert set(some.shares(100.0)) == {"1", "2"}
    assert repr(some.each[0]) == "<Replica 0 ejected, 0 in flight, 3 failures in a row>"


def test_never_all_are_ejected() -> None:
    """The last one stays in use, whatever it does."""
    some = Some(3)
    for number in range(3):
        some.fail(number, 50)
    assert some.told == ["0 http_status", "1 http_status"]
    assert some.shares(100.0) == {"2": 2000}


def test_an_ejected_one_comes_back_slowly() -> None:
    """After its time it gets a tenth of its share, then more, then all; one failure and it is out for twice as long."""
    some = Some(2, seconds=5.0, slow_start=10.0)
    some.fail(0)
    assert some.shares(104.9) == {"1": 2000}
    early = some.shares(105.0)["0"]
    middle = some.shares(110.0)["0"]
    assert 50 < early < middle < 800
    assert some.told == ["0 http_status", "0 back"]
    some.fail(0, 1, now=110.0)
    assert some.shares(119.9) == {"1": 2000}
    assert some.shares(120.0)["0"] > 0
    some.all.succeeded(some.each[0])
    assert 900 < some.shares(130.0)["0"] < 1100


def test_time_left_out_is_bounded_and_forgotten_once_well() -> None:
    """It doubles up to a minute; after a slow start without failure the next time is the first again."""
    some, now, times = Some(2, seconds=5.0, slow_start=10.0), 100.0, []
    for _ in range(6):
        some.fail(0, 3, now)
        until = some.each[0].ejected_until
        assert until is not None
        times.append(until - now)
        now = until
        some.all.choose(now)
    assert times == [5.0, 10.0, 20.0, 40.0, LONGEST_SECONDS, LONGEST_SECONDS]
    some.all.choose(now + 10.0)
    some.all.succeeded(some.each[0])
    some.fail(0, 3, now + 10.0)
    assert some.each[0].ejected_until == now + 15.0


def test_another_than_the_one_that_failed_is_preferred() -> None:
    """A repeat goes elsewhere if there is an elsewhere."""
    some = Some(2)
    assert all(some.all.choose(100.0, some.each[0]) is some.each[1] for _ in range(50))
    some.fail(1)
    assert some.all.choose(100.0, some.each[0]) is some.each[0]


def test_who_asks_to_be_left_alone_is() -> None:
    """A rate limited replica is not asked before its time, an ejected one rather than it; all of them, and none is."""
    some = Some(2)
    some.all.hold(some.each[0], 100.0, 2.0)
    assert some.shares(101.0) == {"1": 2000}
    assert some.all.held_for(101.0) is None
    some.all.hold(some.each[1], 100.0, 3600.0)
    assert some.all.choose(101.0) is None
    assert some.all.held_for(101.0) == 1.0
    assert some.all.choose(102.0) is some.each[0]
    assert some.each[1].held_until == 100.0 + LONGEST_SECONDS


@pytest.mark.parametrize("limit", [0, 1])
def test_ejection_can_be_off_or_quick(limit: int) -> None:
    """With 0 nobody is ever left out, with 1 the first failure does it."""
    some = Some(2, failures=limit)
    some.fail(0, 1)
    assert some.told == (["0 http_status"] if limit else [])


def test_reset_forgets() -> None:
    """An operator lets everybody back in at once."""
    some = Some(2)
    some.fail(0)
    some.all.hold(some.each[1], 100.0, 60.0)
    some.all.reset()
    assert set(some.shares(100.0)) == {"0", "1"}
    assert repr(some.all) == (
        "<Replicas <Replica 0 in use, 0 in flight, 0 failures in a row>, "
        "<Replica 1 in use, 0 in flight, 0 failures in a row>>"
    )
