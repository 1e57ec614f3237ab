"""What fusing costs: CPU of `fuse` and its first ten hits against the literal definition (python -m bench.fusion_cost).

Both run alternately in one process, for 8 lists of 10 and of 100 hits, a third of the documents shared, with
confidences that fall along each list, that do not, and none. The definition knows no k: it fuses all documents. The
column `of ten` is the ratio to a literal version that also stops after ten hits, `of ranks` to reading lists without
confidences by their ranks, and `learned` is what learned calibration adds for each request.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import process_time
from typing import Any, NamedTuple

from app.federation.learning import Learning
from app.fusion.calibration import EngineCalibration, LearnedMap
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from tests.support.fusion_reference import fuse_literally

ENGINES = 8
SIZES = (10, 100)
KINDS = ("falling", "noisy", "absent")
MAPS = EngineCalibration(
    LearnedMap("confident", (0.1, 0.9), 20.0), LearnedMap("silent", (-3.0, 1.0, 0.3, -0.2), 20.0, 25.0, 5.0)
)
"""What was learned of each engine, where it is applied."""
TEXT = "lorem ipsum dolor sit amet " * 11


class Cost(NamedTuple):
    """Medians over the rounds: microseconds of CPU per fusion, and their ratio."""

    kind: str
    size: int
    ours: float
    literal: float
    ratio: float
    ratio_ten: float
    ratio_ranks: float
    learned: float
    """Microseconds more with learned maps of every engine, and with taking in what the engines answered."""


def lists_of(size: int, kind: str) -> list[RankedList]:
    """Lists as engines send them; the same in every run."""
    chance = random.Random(f"{size} {kind}")
    shared = size // 3
    lists = []
    for engine in range(ENGINES):
        ids = [f"shared-{number}" for number in chance.sample(range(size), shared)]
        ids += [f"engine{engine}-{number}" for number in range(size - shared)]
        chance.shuffle(ids)
        confidences = [round(chance.random(), 4) for _ in ids]
        if kind == "falling":
            confidences.sort(reverse=True)
        hits = [
            {"id": key, "score": 30 - 0.25 * rank, "text": TEXT, "confidence": said, "meta": {"lang": "en"}}
            for rank, (key, said) in enumerate(zip(ids, confidences, strict=True))
        ]
        if kind == "absent":
            for hit in hits:
                del hit["confidence"]
        lists.append(RankedList(f"engine{engine}", hits, fetch_k=2 * size))
    return lists


def timed(act: Callable[[], Any], times: int) -> float:
    """Microseconds of CPU per call."""
    started = process_time()
    for _ in range(times):
        act()
    return (process_time() - started) / times * 1e6


def measure(size: int, kind: str, rounds: int, scale: float) -> Cost:
    """One cell of the table; `scale` multiplies how often each side runs in a round."""
    lists, options = lists_of(size, kind), FusionConfig()
    times = max(1, int(scale * 4000 / size))
    few = max(1, times // 4)
    ours, literal, ten, ranks, learned = [], [], [], [], []
    by_ranks = FusionConfig(silent="ranks")
    judged = [ranked._replace(calibration=MAPS) for ranked in lists]
    learning = Learning()

    def learn() -> None:
        fuse(judged, options).hits(0, 10)
        learning.observe("", judged, (), frozen=False)

    for _ in range(rounds):
        ranks.append(timed(lambda: fuse(lists, by_ranks).hits(0, 10), times))
        learned.append(timed(learn, times))
        ours.append(timed(lambda: fuse(lists, options).hits(0, 10), times))
        literal.append(timed(lambda: fuse_literally(lists, options), few))
        ten.append(timed(lambda: fuse_literally(lists, options, 10), few))
    ratio = median([mine / theirs for mine, theirs in zip(ours, literal, strict=True)])
    ratio_ten = median([mine / theirs for mine, theirs in zip(ours, ten, strict=True)])
    ratio_ranks = median([mine / theirs for mine, theirs in zip(ours, ranks, strict=True)])
    more = median([theirs - mine for mine, theirs in zip(ours, learned, strict=True)])
    return Cost(kind, size, median(ours), median(literal), ratio, ratio_ten, ratio_ranks, more)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a ratio is above `--max-ratio`."""
    parser = argparse.ArgumentParser(prog="bench.fusion_cost", description="CPU of the fusion")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="less than 1 for a quick look")
    parser.add_argument("--max-ratio", type=float, help="fail above this share of the literal definition")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    chosen = parser.parse_args(arguments)
    costs = [measure(size, kind, chosen.rounds, chosen.scale) for size in SIZES for kind in KINDS]
    if chosen.json:
        print(json.dumps([cost._asdict() for cost in costs], indent=1))
    else:
        heads = f"{'lists':<10}{'confidences':<13}{'ours':>10}{'literal':>12}{'ratio':>8}{'of ten':>8}"
        print(f"{heads}{'of ranks':>10}{'learned':>11}")
        for cost in costs:
            size, ours = f"{ENGINES} x {cost.size}", f"{cost.ours:>7.0f} µs"
            ratios = f"{cost.ratio:>8.2f}{cost.ratio_ten:>8.2f}{cost.ratio_ranks:>10.2f}"
            print(f"{size:<10}{cost.kind:<13}{ours}{cost.literal:>9.0f} µs{ratios}{cost.learned:>+8.0f} µs")
    return int(chosen.max_ratio is not None and any(cost.ratio > chosen.max_ratio for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
