"""Memory over time: many requests through the gateway, and whether its resident memory stays flat.

Decides when memory counts as flat: over the second half of the requests it grows by less than 2 %. The first half may
fill pools, caches and the allocator's arenas. It refuses to know what the memory is used for.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench import rig
from bench.load import Crew

FLAT = 0.02
"""Largest share by which the second half may grow."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after so many requests."""

    requests: int
    rss_bytes: int


def growth(samples: list[Sample]) -> float:
    """The share by which memory grew from the middle of the run to its end (negative: it shrank)."""
    middle = min(samples, key=lambda sample: abs(sample.requests - samples[-1].requests / 2))
    return samples[-1].rss_bytes / middle.rss_bytes - 1.0


async def watch(
    target: rig.Child, requests: int, step: int, callers: int, show: Callable[[Sample], None]
) -> list[Sample]:
    """Drive `requests` through `target`, with a sample before the first and after every `step`. Raises RigError."""
    crew = Crew(target.urls[0], callers)
    samples = [Sample(0, target.rss_bytes())]
    show(samples[0])
    try:
        await crew.connect()
        while samples[-1].requests < requests:
            portion = min(step, requests - samples[-1].requests)
            tally = await crew.run(portion)
            if tally.faults:
                raise target.fault(f"failed: {dict(tally.faults)}")
            samples.append(Sample(samples[-1].requests + portion, target.rss_bytes()))
            show(samples[-1])
    except OSError as fault:
        raise target.fault(f"could not be asked ({fault})") from None
    finally:
        crew.close()
    return samples


def run(args: argparse.Namespace) -> list[Sample]:
    """Start everything, watch, stop everything. Raises RigError."""
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rcp-bench-")))
        engines = stack.enter_context(rig.stubs(["--engines", str(args.engines)], workspace)).urls
        opened = rig.floor(engines, workspace) if args.floor else rig.gateway(engines, workspace)
        target = stack.enter_context(opened)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        show = show_nothing if args.json else show_line
        return runner.run(watch(target, args.requests, args.step, args.callers, show))


def show_line(sample: Sample) -> None:
    print(f"{sample.requests:>9} requests {sample.rss_bytes / 1_048_576:>9.1f} MiB", flush=True)


def show_nothing(sample: Sample) -> None:
    """For --json: the samples are printed at the end, in one object."""


def report(samples: list[Sample]) -> dict[str, Any]:
    """The run in JSON."""
    return {
        "samples": [{"requests": sample.requests, "rssBytes": sample.rss_bytes} for sample in samples],
        "growth": round(growth(samples), 5),
        "flat": growth(samples) < FLAT,
    }


def main() -> int:
    """The exit status: 0 if flat, 1 if not or if something went wrong."""
    parser = argparse.ArgumentParser(prog="bench.memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--step", type=int, default=10_000, help="requests between two samples")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--floor", action="store_true", help="watch the floor instead, to check the bench itself")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rig.stop_on_signals()
    try:
        samples = run(args)
    except rig.RigError as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    outcome = report(samples)
    verdict = "flat" if outcome["flat"] else "NOT flat"
    print(json.dumps(outcome) if args.json else f"{verdict}: the second half grew by {outcome['growth']:.2%}")
    return 0 if outcome["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
