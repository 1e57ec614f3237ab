"""Memory over time: many requests through the gateway, and whether its resident memory stays flat.

A third of the requests each begins a session, follows a cursor, and does neither. Memory counts as flat if it grows by
less than 2 % over the second half of the requests; the first half may fill pools, caches and the allocator's arenas.
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
from urllib.parse import urlsplit

import orjson
import uvloop

from bench import rig
from bench.load import Crew, prebuilt_question

FLAT = 0.02
"""Largest share by which the second half may grow."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after so many requests."""

    requests: int
    rss_bytes: int


class Visitors(Crew):
    """Callers that come with sessions and follow cursors, where the target has them."""

    def __init__(self, url: str, callers: int) -> None:
        super().__init__(url, callers)
        self.path = urlsplit(url).path
        self.cursors: list[tuple[int, str]] = []
        self.following: set[int] = set()
        """Questions whose second page has been asked for. Third pages are not: at some depth a page is not full."""
        self.asked = 0

    def next_question(self) -> tuple[int, bytes] | None:
        """A question of its own each time, but for one whose next page is asked for."""
        if self.unasked <= 0:
            return None
        self.unasked -= 1
        self.asked += 1
        number = self.asked
        params: dict[str, Any] = {"k": self.k}
        if self.asked % 3 == 1:
            params |= {"sessionId": f"session-{number}"}
        elif self.asked % 3 == 2 and self.cursors:
            number, cursor = self.cursors.pop()
            self.following.add(number)
            params |= {"cursor": cursor}
        return number, prebuilt_question(f"{self.host}:{self.port}", self.path, number, params)

    def fault_of(self, status: bytes, body: bytes, asked_id: int) -> str | None:
        fault = super().fault_of(status, body, asked_id)
        if asked_id in self.following:
            self.following.discard(asked_id)
            return fault
        if fault is None and asked_id % 3 != 1 and len(self.cursors) < self.size:  # no session's
            cursor = orjson.loads(body)["result"].get("nextCursor")
            if cursor is not None:
                self.cursors.append((asked_id, cursor))
        return fault


def growth(samples: list[Sample]) -> float:
    """The share by which memory grew from the middle of the run to its end (negative: it shrank)."""
    middle = min(samples, key=lambda sample: abs(sample.requests - samples[-1].requests / 2))
    return samples[-1].rss_bytes / middle.rss_bytes - 1.0


async def watch(
    target: rig.Child, requests: int, step: int, callers: int, show: Callable[[Sample], None]
) -> list[Sample]:
    """Drive `requests` through `target`, with a sample before the first and after every `step`. Raises RigError."""
    crew = Visitors(target.urls[0], callers)
    samples = [Sample(0, target.rss_bytes())]
    show(samples[0])
    try:
        await crew.connect()
        while samples[-1].requests < requests:
            page = min(step, requests - samples[-1].requests)
            tally = await crew.run(page)
            if tally.faults:
                raise target.fault(f"failed: {dict(tally.faults)}")
            samples.append(Sample(samples[-1].requests + page, target.rss_bytes()))
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
