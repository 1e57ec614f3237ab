"""Chaos for as long as wanted: `python -m tests.chaos --requests 10000 --seed 7`. Exit code 1 if an invariant broke.

With `--reloads 100` the engines are well and the registry changes instead, so often.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.reloads import Reloads
from tests.chaos.scenario import Broken, Chaos


def main() -> int:
    """Run it and tell what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="how many to ask (10000)")
    parser.add_argument("--each", type=int, default=60, help="how many of them in one episode (60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of all chance")
    parser.add_argument(
        "--reloads", type=int, default=0, help="change the registry so often, with engines that are well"
    )
    parser.add_argument("--workers", type=int, default=1, help="of the gateway, with --reloads (1)")
    parser.add_argument("--quiet", action="store_true", help="do not tell each episode")
    wishes = parser.parse_args()
    print(f"seed {wishes.seed}", flush=True)
    began = time.monotonic()
    if wishes.reloads:
        return reload(wishes)
    with tempfile.TemporaryDirectory(prefix="rcp-chaos-") as place:
        chaos = Chaos(wishes.seed, Path(place), lambda line: None if wishes.quiet else print(line, flush=True))
        try:
            asyncio.run(chaos.run(wishes.requests, wishes.each))
        except Broken as broken:
            print(f"broken: {broken}\nagain with: python -m tests.chaos --seed {wishes.seed}", file=sys.stderr)
            return 1
        finally:
            outcome = chaos.outcome
            print(f"{outcome.requests} requests in {outcome.episodes} episodes, {time.monotonic() - began:.0f} s")
    before, after = outcome.before, outcome.after
    assert before is not None
    assert after is not None
    print(f"slowest answer {outcome.slowest:.2f} s, slowest return of an engine {outcome.back:.2f} s", end=", ")
    print(f"{outcome.excused} answers spoilt by a busy machine")
    print(
        f"memory {before.rss >> 20} -> {after.rss >> 20} MiB, descriptors {before.descriptors} -> {after.descriptors}"
    )
    print(
        "answers without an engine for its fault: " + ", ".join(f"{k} {v}" for k, v in sorted(outcome.missed.items()))
    )
    return 0


def reload(wishes: argparse.Namespace) -> int:
    """Change the registry under load and tell what came of it."""
    with tempfile.TemporaryDirectory(prefix="rcp-chaos-") as place:
        reloads = Reloads(wishes.seed, Path(place), lambda line: None if wishes.quiet else print(line, flush=True))
        try:
            told = asyncio.run(reloads.run(wishes.reloads, wishes.workers))
        except Broken as broken:
            print(f"broken: {broken}\nagain with: --reloads {wishes.reloads} --seed {wishes.seed}", file=sys.stderr)
            return 1
    print(f"{len(told.changes)} changes, {told.answers} answers and {told.probes} probes, all of them good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
