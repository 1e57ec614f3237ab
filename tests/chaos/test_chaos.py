"""A short run of chaos in the suite; `make chaos` runs it for longer, with a seed of its own."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.caller import Answer
from tests.chaos.faults import FAULTS
from tests.chaos.machine import Machine
from tests.chaos.scenario import CALLERS, Broken, Chaos, Episode, Outcome, TooBusy, episodes
from tests.chaos.sick_engine import SickEngine, hit

SEED = 5
REQUESTS = CALLERS * (len(FAULTS) + 6)
"""Every fault alone, and six combinations; each caller asks once in each."""
RUNS = 3
"""How many runs there may be until the machine was not too busy for one."""


async def test_sick_engines_cost_a_note_and_nothing_else(tmp_path: Path) -> None:
    """Whatever is wrong with some engines, every request is answered in time with the hits of the others, in order;
    nothing is left behind, and who is well again is used again."""
    outcome = await settled_run(tmp_path)
    assert outcome.requests == REQUESTS
    assert outcome.episodes == len(FAULTS) + 6
    assert outcome.missed.keys() >= FAULTS.keys() - {"slow", "flapping"}


async def settled_run(place: Path) -> Outcome:
    """What came of a run on a machine that had time for it, which may take some waiting."""
    for _ in range(RUNS - 1):
        with suppress(TooBusy):
            return await Chaos(SEED, place).run(REQUESTS, CALLERS)
    return await Chaos(SEED, place).run(REQUESTS, CALLERS)


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same episodes; each fault comes alone before any comes with others."""
    one, other = [list(episodes(random.Random(7), ["a", "b", "c"], 500, 10)) for _ in range(2)]
    assert one == other
    assert one != list(episodes(random.Random(8), ["a", "b", "c"], 500, 10))
    assert sum(episode.requests for episode in one) == 500
    alone = one[: len(FAULTS)]
    assert {fault for episode in alone for fault in episode.sick.values()} == FAULTS.keys()
    assert all(1 <= len(episode.sick) <= 2 for episode in one)


def well(name: str, *ids: str) -> SickEngine:
    """An engine that nobody has started."""
    return SickEngine(name, ids, random.Random(1))


class TestTheJudge:
    """What must hold is looked at: a run in which it does not is broken."""

    @pytest.fixture
    def chaos(self, tmp_path: Path) -> Chaos:
        """A run that has learnt what its engines give."""
        chaos = Chaos(1, tmp_path)
        names = [engine.name for engine in chaos._engines]
        chaos._expected = {frozenset(names): ["a", "b"], frozenset(names[1:]): ["b"]}
        return chaos

    def judged(self, chaos: Chaos, **changes: object) -> None:
        """One answer in an episode in which the first engine hangs."""
        names = [engine.name for engine in chaos._engines]
        served = changes.get("served", names[1:])
        report = [{"id": name, "status": "ok" if name in served else "failed"} for name in names]  # type: ignore[operator]
        result = {
            "hits": [hit(doc, 1) for doc in changes.get("hits", ["b"])],  # type: ignore[attr-defined]
            "usage": {"latencyMs": changes.get("took", 5)},
            "_meta": {"x-gateway": {"engines": report}},
        }
        response = changes.get("response", {"result": result})
        lost = float(str(changes.get("lost", 0)))
        answer = Answer(int(str(changes.get("status", 200))), response, float(str(changes.get("seconds", 0))), lost)  # type: ignore[arg-type]
        chaos._judge(answer, Episode({names[0]: "hang"}, 1))

    def test_a_right_answer_is_right(self, chaos: Chaos) -> None:
        """The hits of those who are well, in time; who is missing is counted by the fault."""
        self.judged(chaos)
        assert chaos.outcome.missed == {"hang": 1}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"status": 503}, "though an engine was well"),
            ({"response": {"error": {"code": -32010}}}, "though an engine was well"),
            ({"took": 2700}, "it took 2700 ms"),
            ({"seconds": 8.0}, "8.000 s here"),
            ({"served": ["engine-2", "engine-3", "engine-4"]}, "were well and missed"),
            ({"served": [f"engine-{number}" for number in range(5)]}, "cannot have answered"),
            ({"hits": ["a"]}, "came"),
            ({"hits": []}, "came"),
        ],
    )
    def test_a_wrong_answer_is_wrong(self, chaos: Chaos, changes: dict[str, object], words: str) -> None:
        """An error, a late answer, a missing engine, a liar, other hits: each breaks the run."""
        with pytest.raises(Broken, match=words):
            self.judged(chaos, **changes)

    def test_a_busy_machine_is_no_fault_of_the_gateway(self, chaos: Chaos) -> None:
        """A well engine that is missed while the machine had no time for us is counted, and bounded at the end."""
        served = [engine.name for engine in chaos._engines[2:]]
        chaos._expected[frozenset(served)] = ["b"]
        self.judged(chaos, served=served, lost=0.5)
        self.judged(chaos, status=503, lost=0.5)
        self.judged(chaos, took=2700, lost=0.5)
        assert chaos.outcome.excused == 3
        with pytest.raises(Broken, match="came"):
            self.judged(chaos, hits=["a"], lost=0.5)


async def test_what_the_machine_takes_is_seen() -> None:
    """A loop that comes late has lost that time; before it, nothing was lost."""
    async with Machine() as machine:
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        time.sleep(0.3)
        await asyncio.sleep(0.05)
        assert machine.lost_since(began) > 0.25
        assert machine.lost_since(time.perf_counter()) == 0
        assert repr(machine).endswith("for 1 processes>")


def test_engines_say_how_they_are() -> None:
    """An engine's state can be read."""
    engine = well("e", "a")
    assert repr(engine) == "<SickEngine e well, 0 connections>"
    engine.fault = FAULTS["drip"]
    assert repr(engine) == "<SickEngine e drip, 0 connections>"
