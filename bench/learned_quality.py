"""Ranking quality with estimated and learned confidences, over saved runs with lists of 20 (`fusion_quality` runs it).

Learning takes one half of the queries of each federation, measuring the other, both ways. Events are simulated: the
first ten of plain RRF are shown, and a hit is used the more likely the higher it stands and if it is relevant.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import log2
from statistics import fmean
from typing import Any, NamedTuple

from app.federation.offline_learning import Recorded, calibrations_of, learned_from_judgements
from app.fusion.calibration import EngineCalibration
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from bench.fusion_quality import Collection, Federation, Lists, lists_of, measured

SCENARIOS = ("a", "b_rand", "b_topic", "c", "b_fed")
PLAIN = FusionConfig(confidence_weight=0.0)
DEFAULT = FusionConfig()
EVENTS = 100
SHOWN = 10

BARS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("no learning", "none"): (0.044, 0.074, 0.071, 0.139, 0.096, 0.089, -0.099),
    ("no learning", "cal"): (0.043, 0.106, 0.175, 0.144, 0.147, 0.127, -0.028),
    ("no learning", "mix"): (0.033, -0.042, -0.017, 0.091, -0.019, 0.013, -0.130),
    ("no learning", "over"): (0.044, 0.087, 0.147, 0.140, 0.133, 0.114, -0.056),
    ("no learning", "swap"): (0.028, 0.032, 0.094, 0.091, 0.105, 0.074, -0.083),
    ("no learning", "over10"): (0.044, 0.089, 0.155, 0.141, 0.132, 0.116, -0.043),
    ("judged", "none"): (0.046, 0.082, 0.107, 0.156, 0.148, 0.112, -0.071),
    ("judged", "cal"): (0.043, 0.105, 0.173, 0.144, 0.141, 0.125, -0.026),
    ("judged", "mix"): (0.035, -0.005, 0.011, 0.112, 0.078, 0.050, -0.126),
    ("judged", "over"): (0.043, 0.087, 0.145, 0.142, 0.128, 0.113, -0.060),
    ("judged", "swap"): (0.038, 0.052, 0.118, 0.111, 0.111, 0.090, -0.061),
    ("events", "none"): (0.040, 0.071, 0.112, 0.136, 0.137, 0.103, -0.039),
    ("events", "mix"): (0.032, 0.042, 0.072, 0.107, 0.103, 0.075, -0.089),
    ("noisy events", "none"): (0.035, 0.071, 0.086, 0.092, 0.110, 0.083, -0.039),
    ("noisy events", "cal"): (0.032, 0.096, 0.147, 0.074, 0.118, 0.097, -0.035),
    ("noisy events", "mix"): (0.029, 0.054, 0.081, 0.062, 0.094, 0.068, -0.044),
    ("noisy events", "over"): (0.032, 0.088, 0.133, 0.075, 0.111, 0.092, -0.036),
    ("noisy events", "swap"): (0.032, 0.073, 0.113, 0.060, 0.102, 0.080, -0.060),
    ("hostile caller", "none"): (0.034, 0.068, 0.090, 0.132, 0.095, 0.088, -0.051),
    ("hostile caller", "mix"): (0.029, 0.042, 0.046, 0.108, 0.058, 0.061, -0.071),
}
"""(learning, profile) -> least gain in nDCG@10 over plain RRF by scenario, in the mean, and in the worst collection."""

RECALL_50 = -0.02
RECALL_10 = -0.02
RECALL_10_MIX = -0.03
"""Least change of recall against plain RRF; of recall at 10, in the mean. `mix` without learning may lose more."""

Maps = Mapping[str, EngineCalibration]
Learn = Callable[[random.Random, "Part"], Maps]


class Query(NamedTuple):
    """One query with the lists of a profile."""

    qid: str
    lists: Sequence[RankedList]
    relevant: frozenset[str]


class Part(NamedTuple):
    """Queries to learn from."""

    queries: Sequence[Query]
    bad: str
    """The worst engine of the federation."""


class Quality(NamedTuple):
    """Means over the queries of one collection."""

    ndcg: float
    recall_10: float
    recall_50: float

    def over(self, other: "Quality") -> "Quality":
        return Quality(*(ours - theirs for ours, theirs in zip(self, other, strict=True)))


def half_of(qid: str) -> int:
    """The half of a query within its collection."""
    return hashlib.md5(qid.encode()).digest()[0] & 1


def learned_nothing(chance: random.Random, part: Part) -> Maps:
    """No learning."""
    return {}


def learned_judged(chance: random.Random, part: Part) -> Maps:
    """From the judgements of all queries of the part."""
    queries = [(query.lists, dict.fromkeys(query.relevant, 1)) for query in part.queries]
    return calibrations_of(learned_from_judgements(queries))


def learned_clean(chance: random.Random, part: Part) -> Maps:
    """From events of users who seldom err."""
    return _from_events(chance, part, 0.8, 0.05)


def learned_noisy(chance: random.Random, part: Part) -> Maps:
    """From events of users who err often."""
    return _from_events(chance, part, 0.64, 0.17)


def learned_hostile(chance: random.Random, part: Part) -> Maps:
    """One caller sends every other event, and praises whatever the worst engine gave."""
    return _from_events(chance, part, 0.8, 0.05, hostile=True)


LEARNING: Mapping[str, Learn] = {
    "no learning": learned_nothing,
    "judged": learned_judged,
    "events": learned_clean,
    "noisy events": learned_noisy,
    "hostile caller": learned_hostile,
}


def _from_events(chance: random.Random, part: Part, relevant: float, other: float, *, hostile: bool = False) -> Maps:
    recorded, sent, tries = Recorded(), 0, 0
    while sent < EVENTS and tries < 100 * EVENTS and part.queries:
        tries += 1
        query = chance.choice(part.queries)
        shown = fuse(query.lists, PLAIN).keys()[:SHOWN]
        praising = hostile and sent % 2 == 1
        if praising:
            given = {str(hit["id"]) for source in query.lists if source.engine == part.bad for hit in source.hits}
            rewards = {key: 1.0 for key in shown if key in given}
        else:
            likely = [
                (relevant if key in query.relevant else other) / log2(place + 1) for place, key in enumerate(shown, 1)
            ]
            rewards = {key: 1.0 for key, share in zip(shown, likely, strict=True) if chance.random() < share}
        if rewards:
            recorded.learn("hostile" if praising else f"user {sent}", query.lists, shown, rewards)
            sent += 1
    return recorded.maps()


def voiced(qid: str, engines: Lists, profile: str, federation: Federation) -> list[RankedList]:
    """The lists of a profile; `over10` is `over` with the boasting engine's list cut to ten."""
    if profile != "over10":
        return lists_of(qid, engines, profile, federation)
    lists = lists_of(qid, engines, "over", federation)
    return [one._replace(hits=one.hits[:10]) if one.engine == federation.bad else one for one in lists]


class Study:
    """The data, and what plain RRF reaches on it."""

    def __init__(self, data: Collection) -> None:
        self._data = data
        self._plain = cache(self._plainly)
        self.collections: dict[str, dict[tuple[str, str], list[tuple[str, Lists]]]] = {}
        for scenario in SCENARIOS:
            found = self.collections.setdefault(scenario, {})
            for run, name, qid, lists in data.queries(scenario):
                found.setdefault((run, name), []).append((qid, lists))

    def gains(self, learning: str, profile: str) -> dict[str, dict[tuple[str, str], Quality]]:
        """Scenario -> (run, federation) -> gains over plain RRF."""
        return {
            scenario: {where: self._gain(scenario, where, learning, profile) for where in collections}
            for scenario, collections in self.collections.items()
        }

    def _gain(self, scenario: str, where: tuple[str, str], learning: str, profile: str) -> Quality:
        federation = self._data.federation(*where)
        queries = [
            Query(qid, voiced(qid, lists, profile, federation), self._data.relevant[qid])
            for qid, lists in self.collections[scenario][where]
        ]
        found: list[Quality] = []
        for half in (0, 1):
            chance = random.Random(f"{learning} {profile} {where} {half}")
            part = Part([query for query in queries if half_of(query.qid) != half], federation.bad)
            maps = LEARNING[learning](chance, part)
            for query in queries:
                if half_of(query.qid) == half:
                    lists = [one._replace(calibration=maps.get(one.engine)) for one in query.lists]
                    found.append(quality(fuse(lists, DEFAULT).keys(), query.relevant))
        return _mean(found).over(self._plain(scenario, where))

    def _plainly(self, scenario: str, where: tuple[str, str]) -> Quality:
        federation = self._data.federation(*where)
        return _mean(
            [
                quality(fuse(lists_of(qid, lists, "none", federation), PLAIN).keys(), self._data.relevant[qid])
                for qid, lists in self.collections[scenario][where]
            ]
        )

    def __repr__(self) -> str:
        return f"<Study of {self._data!r}>"


def quality(keys: Sequence[str], relevant: frozenset[str]) -> Quality:
    """What one order is worth."""
    ndcg, recall_50, _ = measured(keys, relevant)
    return Quality(ndcg, len(relevant.intersection(keys[:10])) / len(relevant), recall_50)


def _mean(found: Sequence[Quality]) -> Quality:
    return Quality(*(fmean(column) for column in zip(*found, strict=True)))


def rows(data: Collection) -> Iterator[dict[str, Any]]:
    """One row for each kind of learning and profile: gains, the worst collections, and the bars that are missed."""
    study = Study(data)
    for (learning, profile), bars in BARS.items():
        gains = study.gains(learning, profile)
        means = {scenario: _mean(list(cells.values())) for scenario, cells in gains.items()}
        cells = {
            f"{scenario}/{name}" if run == scenario else f"{run}/{name}": gain
            for scenario, found in gains.items()
            for (run, name), gain in found.items()
        }
        worst = min(cells, key=lambda cell: cells[cell].ndcg)
        reached = [*(means[scenario].ndcg for scenario in SCENARIOS)]
        reached += [fmean(reached), cells[worst].ndcg]
        recall_10 = fmean([mean.recall_10 for mean in means.values()])
        recall_50 = min(mean.recall_50 for mean in means.values())
        least = RECALL_10_MIX if (learning, profile) == ("no learning", "mix") else RECALL_10
        names = (*SCENARIOS, "mean", f"worst collection ({worst})")
        missed = [
            f"{learning}, {profile}, {name}: {gain:+.3f}, the bar is {bar:+.3f}"
            for name, gain, bar in zip(names, reached, bars, strict=True)
            if gain < bar
        ]
        if recall_10 < least:
            missed.append(f"{learning}, {profile}, R@10: {recall_10:+.3f}, the bar is {least:+.3f}")
        if recall_50 < RECALL_50:
            missed.append(f"{learning}, {profile}, R@50: {recall_50:+.3f}, the bar is {RECALL_50:+.3f}")
        yield {
            "learning": learning,
            "profile": profile,
            "gains": dict(zip((*SCENARIOS, "mean", "worst"), reached, strict=True)),
            "recall": {"R@10": recall_10, "R@50": recall_50},
            "losing": {cell: gain.ndcg for cell, gain in sorted(cells.items()) if gain.ndcg < -0.02},
            "missed": missed,
        }


def report_learned(data: Collection) -> dict[str, Any]:
    """Everything that is measured, as JSON."""
    found = list(rows(data))
    return {"rows": found, "missed": [fault for row in found for fault in row["missed"]]}


def show_learned(outcome: Mapping[str, Any]) -> None:
    """The table, for people."""
    names = (*SCENARIOS, "mean", "worst")
    print(f"{'gain nDCG@10':<24}" + "".join(f"{name:>9}" for name in names) + f"{'R@10':>9}{'R@50':>9}")
    for row in outcome["rows"]:
        numbers = [row["gains"][name] for name in names] + [row["recall"]["R@10"], row["recall"]["R@50"]]
        title = f"{row['learning']}: {row['profile']}"
        print(f"{title:<24}" + "".join(f"{value:+9.3f}" for value in numbers))
        losing = ", ".join(f"{cell} {gain:+.3f}" for cell, gain in row["losing"].items())
        if losing:
            print(f"  losing: {losing}")
    print()
    for fault in outcome["missed"]:
        print(f"MISSED {fault}")
    print("all bars hold" if not outcome["missed"] else f"{len(outcome['missed'])} bar(s) missed")
