"""CPU per federated retrieve of the gateway, as a multiple of the floor, alternating in one run.

Each shape is a number of engines and the k of the question; engines give what they are asked for, which is twice k. In
a round all targets take turns many times over, so that a ratio compares neighbours in time. The result is the median
round, with the spread.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import rig
from bench.load import Crew, Tally
from bench.stub_engine import MAX_K

TURNS = 10
"""Turns that a target has in one round."""
RESERVED = ("gateway", "interpreted", "with-settings")
"""Names of targets that no checkout may have."""
SHAPES = "8x10,32x10,100x10,8x100"
"""Engines x k."""


class Shape(NamedTuple):
    """One question: how many engines it goes to, and for how many hits it asks."""

    engines: int
    k: int

    @staticmethod
    def of(text: str) -> "Shape":
        """Such as 8x10. Raises ValueError."""
        engines, k = map(int, text.split("x"))
        if not (1 <= engines <= 1000 and 1 <= k <= MAX_K // 2):
            raise ValueError(f"engines must be 1 to 1000 and k 1 to {MAX_K // 2}")
        return Shape(engines, k)

    def requests(self, like_first: int) -> int:
        """Requests that are about as much work as so many at 8x10."""
        return max(like_first * 80 // (self.engines * self.k), 32)

    def __str__(self) -> str:
        return f"{self.engines}x{self.k}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One target in one round: CPU microseconds per request, and what the callers saw."""

    cpu_us: float
    tally: Tally

    def summary(self) -> dict[str, Any]:
        return {"cpuUs": round(self.cpu_us, 1), **self.tally.summary()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rounds: in each, one reading per target by name. The first target is the floor."""

    targets: list[str]
    rounds: list[dict[str, Reading]]

    def ratios(self, target: str, base: str = "") -> list[float]:
        """Per round: the CPU of `target` over that of `base`, the floor if not said."""
        base = base or self.targets[0]
        return [readings[target].cpu_us / readings[base].cpu_us for readings in self.rounds]

    def ratio(self, target: str, base: str = "") -> float:
        """The median over the rounds."""
        return statistics.median(self.ratios(target, base))

    def median_us(self, target: str) -> float:
        return statistics.median(readings[target].cpu_us for readings in self.rounds)

    def pooled(self, target: str) -> Tally:
        """The callers' view of all rounds together."""
        whole = Tally()
        for readings in self.rounds:
            whole.add(readings[target].tally)
        return whole

    def faults(self) -> dict[str, dict[str, int]]:
        """Targets that gave an answer that was not the one asked for, with the reasons."""
        pooled = {target: dict(self.pooled(target).faults) for target in self.targets}
        return {target: faults for target, faults in pooled.items() if faults}

    def report(self) -> dict[str, Any]:
        """Everything in JSON; times in microseconds of CPU and milliseconds of latency."""
        return {
            "rounds": [{name: reading.summary() for name, reading in readings.items()} for readings in self.rounds],
            "medianCpuUs": {target: round(self.median_us(target), 1) for target in self.targets},
            "ratio": {
                target: {
                    "median": round(self.ratio(target), 3),
                    "min": round(min(self.ratios(target)), 3),
                    "max": round(max(self.ratios(target)), 3),
                }
                for target in self.targets[1:]
            },
            "errors": self.faults(),
        }

    def lines(self) -> list[str]:
        """The same for people: rounds, medians with their spread, latencies."""
        floor, *others = self.targets
        table = [f"{'CPU µs':<10}{floor:>14}" + "".join(f"{other:>16}{'ratio':>8}" for other in others)]
        for number, readings in enumerate(self.rounds, 1):
            row = f"round {number:<4}{readings[floor].cpu_us:>14.1f}"
            table.append(
                row + "".join(f"{readings[o].cpu_us:>16.1f}{self.ratios(o)[number - 1]:>8.2f}" for o in others)
            )
        row = f"{'median':<10}{self.median_us(floor):>14.1f}"
        table += [row + "".join(f"{self.median_us(other):>16.1f}{self.ratio(other):>8.2f}" for other in others), ""]
        table.append(f"{'latency ms':<16}{'p50':>8}{'p95':>8}{'p99':>8}{'req/s':>10}")
        for target in self.targets:
            seen = self.pooled(target).summary()
            table.append(
                f"{target:<16}{seen['p50Ms']:>8.2f}{seen['p95Ms']:>8.2f}{seen['p99Ms']:>8.2f}{seen['rps']:>10.0f}"
            )
        table.append("")
        for other in others:
            spread = f"{min(self.ratios(other)):.2f} to {max(self.ratios(other)):.2f}"
            table.append(f"{other} costs {self.ratio(other):.2f} times the {floor} ({spread} over the rounds)")
            if "gateway" in others[: others.index(other)]:
                table.append(f"{other} costs {self.ratio(other, 'gateway'):.2f} times the gateway")
        return table


async def compare(targets: list[rig.Child], rounds: int, requests: int, callers: int, k: int = 10) -> Comparison:
    """Drive all targets in turn, after a warm-up that is not counted. Raises RigError."""
    crews = {target.name: Crew(target.urls[0], callers, k) for target in targets}
    try:
        for target in targets:
            await crews[target.name].connect()
            await crews[target.name].run(max(requests // 2, callers))
        results = []
        for number in range(rounds):
            results.append(await one_round(targets, crews, requests))
            for target in targets:
                tally = results[-1][target.name].tally
                if not tally.latencies:
                    raise target.fault(f"gave no good answer: {dict(tally.faults)}")
            show(f"round {number + 1} of {rounds} done")
    except OSError as fault:
        raise rig.RigError(f"a target could not be asked: {fault}") from None
    finally:
        for crew in crews.values():
            crew.close()
    return Comparison([target.name for target in targets], results)


def show(progress: str) -> None:
    """Tell a person who waits at a terminal; a pipe gets the results only."""
    if sys.stderr.isatty():
        print(progress, file=sys.stderr)


async def one_round(targets: list[rig.Child], crews: dict[str, Crew], requests: int) -> dict[str, Reading]:
    """`requests` for every target, in slices so short that a change of the machine's mood meets all of them alike."""
    cpu_ns = dict.fromkeys(crews, 0)
    tallies = {name: Tally() for name in crews}
    for number, page in enumerate(turns(requests)):
        for target in targets if number % 2 == 0 else targets[::-1]:
            before = target.cpu_ns()
            tallies[target.name].add(await crews[target.name].run(page))
            cpu_ns[target.name] += target.cpu_ns() - before
    return {name: Reading(cpu_ns[name] / requests / 1000, tallies[name]) for name in crews}


def turns(requests: int) -> list[int]:
    """`requests` cut into at most TURNS portions."""
    count = min(TURNS, requests)
    return [requests // count + (number < requests % count) for number in range(count)]


def run(shape: Shape, args: argparse.Namespace) -> Comparison:
    """Start everything, compare, stop everything. Raises RigError."""
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rcp-bench-")))
        stub = ["--engines", str(shape.engines), "--bytes", str(args.bytes), "--confidence", args.confidence]
        engines = stack.enter_context(rig.stubs(stub, workspace)).urls
        targets = [stack.enter_context(rig.floor(engines, workspace))]
        if args.control:
            targets.append(stack.enter_context(rig.floor(engines, workspace, "control")))
        if not args.no_gateway:
            targets += [stack.enter_context(gateway) for gateway in gateways(engines, workspace, args)]
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(compare(targets, args.rounds, shape.requests(args.requests), args.callers, shape.k))


def gateways(
    engines: list[str], workspace: Path, args: argparse.Namespace
) -> Iterator[AbstractContextManager[rig.Child]]:
    """The gateways to measure. The workspace has no sources, so `--python` runs what it has installed."""
    if args.python is not None:
        yield rig.gateway(engines, workspace, "gateway", workspace, python=args.python)
        if args.settings is not None:
            yield rig.gateway(
                engines, workspace, "with-settings", workspace, python=args.python, settings=args.settings
            )
    yield rig.gateway(engines, workspace, "gateway" if args.python is None else "interpreted")
    if args.settings is not None and args.python is None:
        yield rig.gateway(engines, workspace, "with-settings", settings=args.settings)
    for checkout in args.against:
        yield rig.gateway(engines, workspace, checkout.name, checkout)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.compare", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shapes", default=SHAPES, help="engines x k, with commas between them")
    parser.add_argument("--rounds", type=int, default=6, help="of which the median one counts")
    parser.add_argument("--requests", type=int, default=1000, help="per target and round at 8x10, else as much work")
    parser.add_argument("--callers", type=int, default=16, help="who ask at the same time")
    parser.add_argument("--bytes", type=int, default=300, help="text of one hit")
    confidences = ["falling", "ragged", "none"]
    parser.add_argument("--confidence", choices=confidences, default="falling", help="along each engine's hits")
    parser.add_argument("--control", action="store_true", help="measure the floor twice: how far from 1 is chance?")
    parser.add_argument("--no-gateway", action="store_true", help="the floor only")
    python = "interpreter that has the gateway installed; it is measured as `gateway`, the checkout as `interpreted`"
    parser.add_argument("--python", metavar="PATH", default=argparse.SUPPRESS, help=python)
    against = "the sources of another checkout too; may be given more than once"
    parser.add_argument("--against", type=Path, metavar="DIR", action="append", default=argparse.SUPPRESS, help=against)
    settings = "YAML for a second gateway, measured as `with-settings`: what does a setting cost?"
    parser.add_argument("--settings", type=Path, metavar="FILE", help=settings)
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    bound = "fail if the gateway's median ratio is larger: one bound, or one for each shape with commas between them"
    parser.add_argument("--max-ratio", metavar="X", default=argparse.SUPPRESS, help=bound)
    args = parser.parse_args()
    if min(args.rounds, args.requests, args.callers) < 1:
        parser.error("rounds, requests and callers must be at least 1")
    try:
        args.shapes = [Shape.of(text) for text in args.shapes.split(",")]
    except ValueError as fault:
        parser.error(f"--shapes: {fault}")
    try:
        bounds = [float(text) for text in args.max_ratio.split(",")] if "max_ratio" in args else []
    except ValueError as fault:
        parser.error(f"--max-ratio: {fault}")
    if len(bounds) > 1 and len(bounds) != len(args.shapes):
        parser.error("--max-ratio: give one bound, or one for each shape")
    args.bounds = bounds * len(args.shapes) if len(bounds) == 1 else bounds or [inf] * len(args.shapes)
    # Not resolved: the interpreter of a virtual environment is a link, and finds the environment by its own path.
    args.python = str(Path(args.python).absolute()) if "python" in args else None
    args.against = [checkout.resolve() for checkout in getattr(args, "against", [])]
    for checkout in args.against:
        if not (checkout / "app" / "main.py").is_file():
            parser.error(f"--against {checkout}: there is no gateway (app/main.py)")
    if len({*RESERVED, *(checkout.name for checkout in args.against)}) < len(args.against) + len(RESERVED):
        parser.error(f"--against: the names of the folders must differ, and none may be {', '.join(RESERVED)}")
    return args


def main() -> int:
    """The exit status: 0, or 1 if something went wrong or a ratio asked for was exceeded."""
    args = arguments()
    rig.stop_on_signals()
    good, reports = True, {}
    try:
        for shape, bound in zip(args.shapes, args.bounds, strict=True):
            comparison = run(shape, args)
            reports[str(shape)] = comparison.report()
            if not args.json:
                print(f"{shape.engines} engines, k {shape.k}, {2 * shape.k} hits x {args.bytes} bytes each, ", end="")
                print(f"{args.callers} callers, {args.rounds} rounds of {shape.requests(args.requests)} requests\n")
                print("\n".join(comparison.lines()), "\n", flush=True)
            for target, faults in comparison.faults().items():
                print(f"bench: {shape}: {target} failed: {faults}", file=sys.stderr)
            good = not comparison.faults() and within(comparison, bound, str(shape)) and good
    except rig.RigError as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(reports))
    return 0 if good else 1


def within(comparison: Comparison, bound: float, shape: str) -> bool:
    """Whether the gateway's median ratio keeps to the bound; says so on stderr if not."""
    if "gateway" not in comparison.targets or comparison.ratio("gateway") <= bound:
        return True
    print(f"bench: {shape}: the ratio {comparison.ratio('gateway'):.3f} exceeds {bound}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(main())
