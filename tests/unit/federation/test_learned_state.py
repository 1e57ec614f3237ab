"""What learned calibration keeps: bounded, mergeable, and not to be talked up by one caller."""

import math
from typing import Any

import pytest

from app.federation.attributions import MOST_SHOWN, Attributions
from app.federation.learned_state import MOST_CALLERS, Callers, EngineLearning, MapState, label_of
from app.federation.learning import Event, Learning
from app.fusion.calibration import Example, Moments
from app.fusion.ranked_lists import RankedList
from app.protocol.advertisement import Advertisement
from app.state.store import MemoryStore
from app.state.sums import FileSums
from tests.support.plain_store import PlainStore

DAY = 86400
PRAISE = [Example((1.0, 0.0), 1.0, 1.0), Example((1.0, -1.0), 0.5, 0.0)]
CLAIM = ("e", "confident", (1.0, 0.5))


def test_one_callers_events_weigh_little() -> None:
    """Ten thousand events of one caller weigh no more than some eighty of others."""
    callers = Callers()
    weight = sum(callers.share(["loud"], 0.0) for _ in range(10_000))
    assert 10 < weight <= 10 * (1 + math.log(1000))
    assert callers.share(["other"], 0.0) == 1.0
    assert callers.share(["new", "loud"], 0.0) < 0.002


def test_a_day_later_a_caller_counts_in_full_again() -> None:
    """What is older than a day and the hour that it began in is gone."""
    callers = Callers()
    for _ in range(20):
        callers.count("one", 0.0)
    assert callers.count("one", DAY - 1.0) == 21
    assert callers.count("one", DAY + 3601.0) == 2


def test_callers_are_bounded() -> None:
    """The least recent ones go first."""
    callers = Callers()
    for number in range(MOST_CALLERS + 50):
        callers.count(f"c{number}", 0.0)
    assert len(callers) == MOST_CALLERS
    assert callers.count("c0", 0.0) == 1
    assert callers.count(f"c{MOST_CALLERS + 49}", 0.0) == 2


async def test_increments_of_two_processes_add_up_to_those_of_one(tmp_path: Any) -> None:
    """The same θ and n to the last digits, whoever learned what, as long as the working points are the same."""
    sums = FileSums(tmp_path / "sums.json")
    one, other, alone = (Learning(sums=sums, clock=lambda: 0.0) for _ in range(3))
    alone = Learning(clock=lambda: 0.0)
    lesson: Any = [(1, 1.0, [CLAIM]), (2, None, [("e", "confident", (1.0, -1.0))])]
    one.learn(Event("", "a"), [lesson])
    other.learn(Event("", "b"), [lesson])
    state = alone._state("", "e").confident
    state.learn([*lesson_examples(), *lesson_examples()], 0.0)
    for learning in (one, other, one):
        learning._state("", "e").used = True
        await learning.exchange()
    for learning in (one, other):
        learned = learning.maps("")["e"].confident
        assert learned is not None
        assert learned.n == pytest.approx(2)
        assert learned.theta == pytest.approx(state.learned().theta, abs=1e-6)


def lesson_examples() -> list[Example]:
    """The examples of the lesson above."""
    return [Example((1.0, 0.5), 1.0, 1.0), Example((1.0, -1.0), 1 / math.log2(3), 0.0)]


def test_a_failed_exchange_is_made_up_for() -> None:
    """What was on its way is sent with the next one; after a new beginning it is forgotten."""
    state = MapState("confident", 0.0)
    state.learn(PRAISE, 0.0)
    sent = state.addition("x", "")
    assert not state.changed
    state.learn(PRAISE, 0.0)
    state.returned(sent)
    assert state.addition("x", "").values[5] == pytest.approx(2.0)
    state.learn(PRAISE, 0.0)
    sent = state.addition("x", "")
    state.begin_anew()
    state.returned(sent)
    again = state.addition("x", "")
    assert again.reset
    assert not any(again.values)


def test_scores_that_move_far_start_the_map_of_scores_anew() -> None:
    """The mean of the last 200 scores lies more than four deviations from that of all before."""
    state = EngineLearning(0.0)
    usual = [1.0, 0.9, 0.8, 0.7, 0.6] * 4
    assert not any(state.observe(usual) for _ in range(40))
    assert any(state.observe([score * 100 for score in usual]) for _ in range(10))


def test_a_version_is_another_one_only_when_it_changes() -> None:
    """The first version that is seen is none; the same advertisement is looked at once."""
    first, second = (Advertisement({"name": "e", "version": version}, {}) for version in ("1", "2"))
    state = EngineLearning(0.0)
    assert [state.renewed(seen) for seen in (None, first, first, second)] == [False, False, False, True]
    assert state.label == label_of(second) == "e 2"


def test_loaded_maps_replace_what_was_learned() -> None:
    """And are what the next exchange begins with."""
    state = MapState("silent", 0.0)
    state.load([0.0] * 14 + [7.0], Moments(10.0, 50.0, 300.0))
    assert (state.learned().n, state.learned().mean) == (7.0, 5.0)
    sent = state.addition("x", "")
    assert sent.reset
    assert tuple(sent.values[14:]) == (7.0, 10.0, 50.0, 300.0)


def test_engines_and_scopes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those begun first go first."""
    monkeypatch.setattr("app.federation.learning.MOST_SCOPES", 2)
    monkeypatch.setattr("app.federation.learning.MOST_ENGINES", 2)
    learning = Learning(clock=lambda: 0.0)
    for scope in ("a", "b", "c"):
        for engine in ("x", "y", "z"):
            learning.observe(scope, [RankedList(engine, [])], (), frozen=False)
    assert [told["scope"] for told in learning.view()] == ["b", "c"]
    assert [one["id"] for one in learning.view("c")[0]["engines"]] == ["y", "z"]


async def test_attributions_are_bounded() -> None:
    """The first hits of an answer, and the latest answers of a session."""
    attributions = Attributions(MemoryStore(10, 10_000), 60, 60)
    for answer in range(3):
        ids = [f"{answer}-{place}" for place in range(80)]
        await attributions.remember("s", ids, [[CLAIM]] * 80)
    assert (await attributions.judged("s", {"0-0": 1.0}))[1] == {"0-0"}
    judged, unknown = await attributions.judged("s", {"2-0": 1.0, f"2-{MOST_SHOWN}": 1.0})
    assert unknown == {f"2-{MOST_SHOWN}"}
    assert len(judged[0]) == MOST_SHOWN
    assert judged[0][0] == (1, 1.0, [CLAIM])
    assert judged[0][1] == (2, None, [CLAIM])


async def test_attributions_are_plain_data_of_one_tenant() -> None:
    """A store outside keeps them; another tenant's session of the same name has none."""
    store = PlainStore()
    attributions = Attributions(store, 60, 100)
    await attributions.for_tenant("red").remember("s", ["a"], [[CLAIM]])
    assert store.seconds == {"shown:red:s": 60}
    assert await attributions.for_tenant("blue").judged("s", {"a": 1.0}) == ([], frozenset({"a"}))
    assert (await attributions.for_tenant("red").judged("s", {"a": 0.5}))[0] == [[(1, 0.5, [CLAIM])]]


def test_they_say_what_they_hold() -> None:
    """For an incident."""
    learning = Learning(clock=lambda: 0.0)
    learning.observe("", [RankedList("e", [])], (), frozen=True)
    assert repr(learning) == "<Learning in 1 scopes, alone>"
    assert "n=0" in repr(EngineLearning(0.0))
    assert repr(Callers()) == "<Callers: 0 within a day>"
    assert repr(Attributions(MemoryStore(1, 1), 60, 1)).startswith("<Attributions for 60 s")
