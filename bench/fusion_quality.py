"""Ranking quality of the gateway's own fusion over saved runs of real engines: `python -m bench.fusion_quality DIR`.

DIR holds `manifest.json`, `qrels.json.gz` and `runs/<scenario>.jsonl.gz`. Prints nDCG@10, Recall@50 and MRR of plain
RRF per scenario, the gain in nDCG@10 of each confidence profile over it, and fails if a gain is below its bar. Runs
with lists of 20 are measured with and without learned calibration, and have bars of their own (`learned_quality`).
"""

import argparse
import gzip
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse

Hit = dict[str, Any]
Lists = Mapping[str, Sequence[Hit]]

SCENARIOS = ("a", "aj", "b_rand", "b_topic", "b_fed", "c")
RUNS = {"a": ("aj",), "b_fed": ("b_fed1", "b_fed2")}
"""Files of a scenario, where they are not named as it is."""
NOT_IN_A = frozenset({"title", "junk"})

PLAIN = FusionConfig(confidence_weight=0.0)
TEMPERED = FusionConfig()
BY_RANKS = FusionConfig(silent="ranks")
SHORT_LISTS = 20
"""Runs with lists of this length have the bars of `learned_quality`."""

BARS: Mapping[str, Mapping[str, float]] = {
    "cal": {"a": -0.015, "aj": 0.015, "b_rand": 0.02, "b_topic": 0.08, "b_fed": 0.18, "c": 0.06},
    "mix": {"a": -0.015, "aj": 0.0, "b_rand": -0.02, "b_topic": 0.05, "b_fed": 0.12, "c": 0.04},
    "over": {"a": -0.02, "aj": 0.01, "b_rand": -0.03, "b_topic": 0.03, "b_fed": 0.10, "c": 0.05},
}
OTHER_BAR = -0.05
"""The least gain wherever BARS names none."""


class Federation(NamedTuple):
    """One collection of one scenario, as the manifest describes it."""

    best: str
    bad: str
    fetch_k: int


class Metrics(NamedTuple):
    """Means over queries."""

    ndcg: float
    recall: float
    mrr: float


def cal(_: str, __: str, hit: Hit, ___: int) -> float | None:
    """The calibrated confidence."""
    return hit["confidence"]  # type: ignore[no-any-return]


def boast(rank: int) -> float:
    """What a lying engine says of its hit at `rank`."""
    return 0.99 - 0.0018 * rank


def noise(qid: str, engine: str, hit: Hit, _: int) -> float:
    """A confidence that says nothing, the same in every run."""
    return int(hashlib.md5(f"noise|{qid}|{engine}|{hit['id']}".encode()).hexdigest()[:8], 16) / 2**32


Voice = Callable[[str, str, Hit, int], float | None]
"""(qid, engine, hit, 1-based rank) -> what the engine claims."""


def responses(profile: str, engines: Sequence[str], federation: Federation) -> dict[str, Voice]:
    """How each engine of a federation speaks under `profile`."""
    spoken: dict[str, Voice] = dict.fromkeys(engines, cal)
    best, bad = federation.best, federation.bad
    match profile:
        case "none":
            return dict.fromkeys(engines, lambda *_: None)
        case "mix":
            return dict.fromkeys(engines, lambda _, __, hit, ___: hit.get("mix"))
        case "noise":
            return dict.fromkeys(engines, noise)
        case "half":
            spoken.update(dict.fromkeys(sorted(engines)[1::2], lambda *_: None))
        case "over":
            spoken[bad] = lambda _, __, ___, rank: boast(rank)
        case "overbest":
            spoken[best] = lambda _, __, ___, rank: boast(rank)
        case "swap":
            spoken[best] = lambda _, __, hit, ___: hit["confidence"] * 0.25
            spoken[bad] = lambda _, __, ___, rank: boast(rank)
        case "inv":
            spoken[best] = lambda _, __, hit, ___: 1 - hit["confidence"]
    return spoken


PROFILES = ("cal", "mix", "none", "half", "over", "overbest", "swap", "inv", "noise")


def lists_of(qid: str, engines: Lists, profile: str, federation: Federation) -> list[RankedList]:
    """The ranked lists of one query with the confidences of `profile`."""
    speaking = responses(profile, list(engines), federation)
    lists = []
    for engine, hits in engines.items():
        response = speaking[engine]
        spoken = []
        for rank, hit in enumerate(hits, 1):
            said = response(qid, engine, hit, rank)
            told = {"id": hit["id"], "score": hit["score"]}
            spoken.append(told if said is None else {**told, "confidence": said})
        lists.append(RankedList(engine, spoken, fetch_k=federation.fetch_k))
    return lists


def measured(ranking: Sequence[str], relevant: frozenset[str]) -> Metrics:
    """nDCG@10 (binary, ideal over min(10, all relevant)), Recall@50, MRR over the first 50."""
    found = [rank for rank, key in enumerate(ranking[:50], 1) if key in relevant]
    ideal = sum(1 / log2(rank + 1) for rank in range(1, min(10, len(relevant)) + 1))
    gained = sum(1 / log2(rank + 1) for rank in found if rank <= 10)
    return Metrics(gained / ideal, len(found) / len(relevant), 1 / found[0] if found else 0.0)


def averaged(metrics: Sequence[Metrics]) -> Metrics:
    """The plain mean of each metric."""
    return Metrics(*(fmean(column) for column in zip(*metrics, strict=True)))


class Collection:
    """The data directory, read once: queries with their lists, and what is relevant to each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
        judged = json.loads(gzip.decompress((directory / "qrels.json.gz").read_bytes()))
        self.relevant = {qid: frozenset(documents) for qid, documents in judged.items()}
        self._runs: dict[str, list[dict[str, Any]]] = {}

    def __repr__(self) -> str:
        return f"<Collection {self._directory}: {len(self.relevant)} judged queries, runs read: {sorted(self._runs)}>"

    @property
    def short(self) -> bool:
        """Whether its lists are of the length that a gateway asks for."""
        return bool(self._manifest["fetchK"] == SHORT_LISTS)

    def federation(self, scenario: str, name: str) -> Federation:
        """What the manifest says of one federation."""
        stated = self._manifest["scenarios"][scenario]["federations"][name]
        return Federation(stated["best"], stated["bad"], self._manifest["fetchK"])

    def queries(self, scenario: str) -> Iterator[tuple[str, str, str, Lists]]:
        """(run, federation, qid, lists) of every query of a scenario."""
        stored = (self._directory / "runs" / f"{scenario}.jsonl.gz").is_file()
        for run in (scenario,) if stored else RUNS.get(scenario, (scenario,)):
            for line in self._read(run):
                lists: Lists = line["engines"]
                if scenario == "a" and not stored:
                    lists = {engine: hits for engine, hits in lists.items() if engine not in NOT_IN_A}
                yield (scenario if scenario == "a" else run), line["federation"], line["qid"], lists

    def _read(self, run: str) -> list[dict[str, Any]]:
        if run not in self._runs:
            with gzip.open(self._directory / "runs" / f"{run}.jsonl.gz", "rt", encoding="utf-8") as lines:
                self._runs[run] = [json.loads(line) for line in lines]
        return self._runs[run]


def evaluate(data: Collection, scenario: str, profile: str, options: FusionConfig) -> Metrics:
    """The mean over federations of the means over their queries."""
    by_federation: dict[tuple[str, str], list[Metrics]] = defaultdict(list)
    for run, name, qid, lists in data.queries(scenario):
        fused = fuse(lists_of(qid, lists, profile, data.federation(run, name)), options)
        by_federation[run, name].append(measured(fused.keys(), data.relevant[qid]))
    by_run: dict[str, list[Metrics]] = defaultdict(list)
    for (run, _), metrics in by_federation.items():
        by_run[run].append(averaged(metrics))
    return averaged([averaged(metrics) for metrics in by_run.values()])


def same_without_confidences(data: Collection, scenario: str) -> bool:
    """Whether tempering leaves every order alone when no engine gives a confidence and lists are read by ranks."""
    for run, name, qid, lists in data.queries(scenario):
        silent = lists_of(qid, lists, "none", data.federation(run, name))
        if fuse(silent, BY_RANKS).keys() != fuse(silent, PLAIN).keys():
            return False
    return True


def bar_of(profile: str, scenario: str) -> float:
    """The least gain in nDCG@10 that must be reached."""
    return BARS.get(profile, {}).get(scenario, OTHER_BAR)


def report(directory: Path) -> dict[str, Any]:
    """Everything that is measured, as JSON: plain metrics, gains, and the cells below their bar."""
    data = Collection(directory)
    plain = {scenario: evaluate(data, scenario, "none", PLAIN) for scenario in SCENARIOS}
    gains = {
        profile: {
            scenario: evaluate(data, scenario, profile, TEMPERED).ndcg - plain[scenario].ndcg for scenario in SCENARIOS
        }
        for profile in PROFILES
    }
    missed = [
        f"{profile} on {scenario}: {gain:+.3f}, the bar is {bar_of(profile, scenario):+.3f}"
        for profile, row in gains.items()
        for scenario, gain in row.items()
        if gain < bar_of(profile, scenario)
    ]
    missed += [
        f"none on {scenario}, read by ranks: the order differs from plain RRF"
        for scenario in SCENARIOS
        if not same_without_confidences(data, scenario)
    ]
    return {"plain": {scenario: m._asdict() for scenario, m in plain.items()}, "gains": gains, "missed": missed}


def show(outcome: Mapping[str, Any]) -> None:
    """The tables, for people."""
    head = "".join(f"{scenario:>9}" for scenario in SCENARIOS)
    print(f"plain RRF   {head}")
    for metric, title in (("ndcg", "nDCG@10"), ("recall", "Recall@50"), ("mrr", "MRR")):
        print(f"{title:<12}" + "".join(f"{outcome['plain'][scenario][metric]:9.3f}" for scenario in SCENARIOS))
    print(f"\ngain nDCG@10{head}     mean")
    for profile, row in outcome["gains"].items():
        cells = "".join(f"{row[scenario]:+9.3f}" for scenario in SCENARIOS)
        print(f"{profile:<12}{cells}{fmean(row.values()):+9.3f}")
    print()
    for fault in outcome["missed"]:
        print(f"MISSED {fault}")
    print("all bars hold" if not outcome["missed"] else f"{len(outcome['missed'])} bar(s) missed")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all bars hold, 1 if one does not, 2 if the data cannot be read."""
    parser = argparse.ArgumentParser(prog="bench.fusion_quality", description="ranking quality of the fusion")
    parser.add_argument("directory", type=Path, help="directory with manifest.json, qrels.json.gz and runs/")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    chosen = parser.parse_args(arguments)
    if not (chosen.directory / "manifest.json").is_file():
        print(
            f"error: {chosen.directory} holds no manifest.json; name the directory of the saved runs", file=sys.stderr
        )
        return 2
    from bench import learned_quality  # builds on this module

    data = Collection(chosen.directory)
    outcome = learned_quality.report_learned(data) if data.short else report(chosen.directory)
    if chosen.json:
        print(json.dumps(outcome, indent=1))
    elif data.short:
        learned_quality.show_learned(outcome)
    else:
        show(outcome)
    return 1 if outcome["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
