"""Cases of chance for as long as wanted: `python -m tests.fuzz --of requests --cases 100000 --seed 7`.

Exit code 1 if something that must hold did not; the case is named, and `--from N --cases 1` gives it again.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.cases import KINDS
from tests.support.virtual_time import JumpingLoop


async def run(kind: str, seed: int, first: int, count: int, place: Path) -> int:
    """Run the cases; how many were broken. At most ten are told."""
    broken = 0
    began = time.monotonic()
    async with KINDS[kind](place) as case:
        for number in range(first, first + count):
            if broken >= 10:
                break
            try:
                await case(random.Random(f"{seed}:{kind}:{number}"))
            except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
                broken += 1
                print(f"broken: --of {kind} --seed {seed} --from {number} --cases 1\n{traceback.format_exc(limit=-3)}")
            if (number + 1) % 10_000 == 0:
                print(f"{kind}: {number + 1} cases, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{kind}: {count} cases from {first} with seed {seed}, {broken} broken, {time.monotonic() - began:.0f} s")
    return broken


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--of", choices=[*KINDS, "all"], default="all", help="whose bytes (all)")
    parser.add_argument("--cases", type=int, default=10_000, help="how many of each (10000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first (0)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of all chance")
    wishes = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="rcp-fuzz-") as place:
        for kind in KINDS if wishes.of == "all" else [wishes.of]:
            with asyncio.Runner(loop_factory=JumpingLoop) as runner:
                broken += runner.run(run(kind, wishes.seed, wishes.first, wishes.cases, Path(place)))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
