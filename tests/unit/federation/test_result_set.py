"""What engines gave, joined with what they gave before."""

import json
from typing import Any

from app.federation.outcome import Outcome, answered, failed
from app.federation.planner import Plan
from app.federation.result_set import ResultSet, dump_result_set, joined, load_result_set, result_set_of, without
from app.fusion.calibration import EngineCalibration, LearnedMap
from app.fusion.rrf import fuse
from app.protocol.errors import BadStatus
from app.protocol.retrieve_params import RetrieveParams
from app.settings.schema import RetrieveSettings
from tests.support.fake_engine import FakeEngine, call_of, hit, hits, members_of
from tests.support.planning import planned


def stocked(engines: list[FakeEngine], outcomes: list[Outcome], **params: Any) -> ResultSet:
    """The stock of these outcomes."""
    plan = planned(members_of(*engines), **params)
    result_set = result_set_of(plan, outcomes, read(**params))
    assert result_set is not None
    return result_set


def read(**params: Any) -> RetrieveParams:
    return call_of(**params).params


def gave(engine: str, *ids: Any) -> Outcome:
    """This engine answered with these."""
    return answered(engine, {"hits": hits(*ids)}, 0.01, 1)


LOST = failed("b", BadStatus("503"), 0.1)


def test_who_gave_all_it_was_asked_for_may_have_more() -> None:
    """An engine is open if it filled its window and can be asked for more than that."""
    engines = [
        FakeEngine("filled"),
        FakeEngine("bounded", capabilities={"retrieve": {"maxK": 20}}),
        FakeEngine("few"),
        FakeEngine("empty"),
        FakeEngine("boundless", capabilities={"retrieve": {}}),
        FakeEngine("flawed"),
    ]
    broken = answered("flawed", {"hits": [*hits(*range(19)), {"id": None}]}, 0.01, 1)
    full = [gave(name, *range(20)) for name in ("filled", "bounded", "boundless")]
    result_set = stocked(engines, [*full, gave("few", 1), gave("empty"), broken])
    assert result_set.open == {"filled", "boundless", "flawed"}
    assert result_set.exhausted() == {"bounded", "few", "empty"}
    assert result_set.size() == 80


def test_beyond_what_is_looked_at_nobody_is_asked() -> None:
    """An engine without a bound is not asked for more hits than are looked at."""
    engine = FakeEngine("e", capabilities={"retrieve": {}})
    plan = planned(members_of(engine), wishes=RetrieveSettings(window_min=1000))
    result_set = result_set_of(plan, [gave("e", *range(1000))], read())
    assert result_set is not None
    assert result_set.open == set()


def test_nobody_answered_is_no_result_set() -> None:
    """Without an answer there is nothing to serve from."""
    plan = planned(members_of(FakeEngine("b")))
    assert result_set_of(plan, [LOST], read()) is None
    assert result_set_of(Plan((), (), 10, plan.fusion), [], read()) is None


def test_deeper_lists_take_the_place_of_earlier_ones() -> None:
    """Who answered deeper has its new list, and what that lacks of the old; who did not has its old one."""
    engines = [FakeEngine("a"), FakeEngine("b"), FakeEngine("c")]
    before = stocked(engines, [gave("a", *range(20)), gave("b", *range(100, 120))])
    deeper = stocked(engines, [gave("a", *range(5, 45)), LOST, gave("c", 200)], k=20)
    result_set = joined(deeper, before)
    by_engine = {ranked.engine: [found["id"] for found in ranked.hits] for ranked in result_set.lists}
    assert by_engine == {"a": [*range(5, 45), *range(5)], "b": [*range(100, 120)], "c": [200]}
    assert result_set.open == {"a", "b"}
    assert list(result_set.degraded) == ["b"]


def test_who_cannot_be_asked_deeper_is_not_open() -> None:
    """An engine that fills the same window twice has no more to give in this way."""
    engine = FakeEngine("a", capabilities={"retrieve": {"rerankBuiltin": True}, "rerank": {"maxCandidates": 20}})
    rerank = {"rerank": {"topN": 50}, "candidateK": 50}
    before = stocked([engine], [gave("a", *range(20))], **rerank)
    assert before.open == {"a"}
    assert joined(stocked([engine], [gave("a", *range(20))], **rerank, k=40), before).open == set()


def test_an_engine_that_came_back_is_not_degraded_any_more() -> None:
    """Once it has given its list, an answer is whole again."""
    engines = [FakeEngine("a"), FakeEngine("b")]
    before = stocked(engines, [gave("a", 1), LOST])
    assert list(joined(stocked(engines, [gave("b", 2)]), before).degraded) == []
    assert list(joined(stocked(engines, [gave("a", 1)]), before).degraded) == ["b"]


def test_versions_join_if_all_have_them() -> None:
    """Versions of engines that were not asked again are kept."""
    snapshots = {"retrieve": {"snapshots": True}}
    engines = [FakeEngine("a", capabilities=snapshots), FakeEngine("b", capabilities=snapshots)]

    def served(engine: str, version: str | None) -> Outcome:
        return answered(engine, {"hits": hits(1), "indexVersion": version}, 0.01, 1)

    before = stocked(engines, [served("a", "v1"), served("b", "r1")])
    assert before.versions == {"a": "v1", "b": "r1"}
    assert joined(stocked(engines, [served("a", "v2")]), before).versions == {"a": "v2", "b": "r1"}
    assert joined(stocked(engines, [served("a", None)]), before).versions is None


def test_a_new_result_set_begins_behind_what_was_served() -> None:
    """What was returned or seen is not in the order any more, though the lists still have it."""
    result_set = stocked([FakeEngine("a")], [gave("a", *range(6))])
    assert without(result_set, {"0", "1"}, None).fusion.keys() == ["2", "3", "4", "5"]
    assert without(result_set, {"0", "1"}, {"3"}).fusion.keys() == ["2", "4", "5"]
    assert without(result_set, frozenset(), None) is result_set
    assert without(result_set, {"0"}, None).size() == 6


def test_a_result_set_survives_as_plain_data() -> None:
    """Through JSON and back it serves the same hits in the same order, and knows the same."""
    sent = [hit(number, 1 - number / 9, text=f"t {number}", confidence=0.5, x=[1, {"y": None}]) for number in range(6)]
    outcomes = [answered("a", {"hits": sent}, 0.01, 1), gave("b", "3", "x")]
    engines = [FakeEngine("a", weight=2.0, idNamespace="ns"), FakeEngine("b")]
    result_set = without(stocked(engines, outcomes, x_gateway={"mmr": {"lambda": 0.3}}), {"ns:1"}, None)
    again = load_result_set(json.loads(json.dumps(dump_result_set(result_set))))
    assert again.fusion.hits() == result_set.fusion.hits()
    assert [tuple(ranked) for ranked in again.lists] == [tuple(ranked) for ranked in result_set.lists]
    assert again[2:] == result_set[2:]


def test_what_was_learned_goes_with_a_result_set() -> None:
    """A page is served by the calibration of the first one, also at another gateway."""
    learned = EngineCalibration(
        LearnedMap("confident", (2.0, 0.5), 9.0), LearnedMap("silent", (1.0,) * 4, 3.0, 2.0, 1.0)
    )
    result_set = stocked([FakeEngine("a"), FakeEngine("b")], [gave("a", *range(6)), gave("b", "3", "x")])
    lists = [ranked._replace(calibration=learned) for ranked in result_set.lists]
    result_set = result_set._replace(lists=lists, fusion=fuse(lists, result_set.options))
    again = load_result_set(json.loads(json.dumps(dump_result_set(result_set))))
    assert [ranked.calibration for ranked in again.lists] == [learned, learned]
    assert again.fusion.hits() == result_set.fusion.hits()
