"""The comparison: CPU per federated retrieve of the gateway, as a multiple of the floor, alternating in one run.

Decides the setup (the same stub engines and callers for everybody), whose turn it is and what is reported. In a round
the targets take turns many times over, so that a ratio compares neighbours in time; the verdict is the median round.
It refuses to know how the gateway works: it is the process that `python -m app serve` starts.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from app.compiled import INTERPRETED_VARIABLE
from bench import rig
from bench.load import Crew, Tally
from bench.stub_engine import documents

SLICE = 200
"""Requests that one target answers before it is the next one's turn."""
WANTED = 10
"""Hits asked for, where the stubs together have as many."""
FUSION_LIMIT = 300.0
"""Seconds that the cost of fusion alone may take to measure."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One target in one round: CPU microseconds per request, and what the callers saw."""

    cpu_us: float
    tally: Tally

    def summary(self) -> dict[str, Any]:
        return {"cpuUs": round(self.cpu_us, 1), **self.tally.summary()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rounds; in each, one reading per target by name. The first target is the floor everything is measured by."""

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
    for number, portion in enumerate(slices(requests)):
        for target in targets if number % 2 == 0 else targets[::-1]:
            before = target.cpu_ns()
            tallies[target.name].add(await crews[target.name].run(portion))
            cpu_ns[target.name] += target.cpu_ns() - before
    return {name: Reading(cpu_ns[name] / requests / 1000, tallies[name]) for name in crews}


def slices(requests: int) -> list[int]:
    """`requests` cut into portions of about SLICE."""
    count = max(round(requests / SLICE), 1)
    return [requests // count + (number < requests % count) for number in range(count)]


def run(args: argparse.Namespace) -> Comparison:
    """Start everything, compare, stop everything. Raises RigError."""
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rcp-bench-")))
        engines = stack.enter_context(rig.stubs(args.stub, workspace)).urls
        targets = [stack.enter_context(rig.floor(engines, args.loop, workspace))]
        if args.control:
            targets.append(stack.enter_context(rig.floor(engines, args.loop, workspace, "control")))
        if args.both_loops:
            other = "asyncio" if args.loop == "uvloop" else "uvloop"
            targets.append(stack.enter_context(rig.floor(engines, other, workspace)))
        if not args.no_gateway:
            targets.append(stack.enter_context(rig.gateway(engines, workspace)))
        if args.interpreted:
            sources = rig.gateway(engines, workspace, "interpreted", variables={INTERPRETED_VARIABLE: "1"})
            targets.append(stack.enter_context(sources))
        for checkout in args.against:
            targets.append(stack.enter_context(rig.gateway(engines, workspace, checkout.name, checkout)))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(compare(targets, args.rounds, args.requests, args.callers, args.k))


def fusion_cost() -> bool:
    """Measure fusion alone as well, where that bench is installed; False if it failed."""
    if not (rig.PROJECT / "bench" / "fusion_cost.py").exists():
        return True
    print("\nfusion alone", flush=True)
    command = [sys.executable, "-m", "bench.fusion_cost"]
    try:
        return subprocess.run(command, cwd=rig.PROJECT, timeout=FUSION_LIMIT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        raise rig.RigError(f"the cost of fusion was not known after {FUSION_LIMIT:.0f} s") from None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.compare", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of which the median one counts")
    parser.add_argument("--requests", type=int, default=2000, help="per target and round")
    parser.add_argument("--callers", type=int, default=16, help="who ask at the same time")
    parser.add_argument("--engines", type=int, default=8, help="stubs that every question goes to")
    parser.add_argument("--hits", type=int, default=10, help="that each engine has, 1 to 100")
    parser.add_argument("--bytes", type=int, default=300, help="text of one hit")
    confidences = ["falling", "ragged", "none"]
    parser.add_argument("--confidence", choices=confidences, default="falling", help="along each engine's hits")
    parser.add_argument("--citations", action="store_true", help="a citation on every hit")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop", help="the floor's event loop")
    parser.add_argument("--control", action="store_true", help="measure the floor twice: how far from 1 is chance?")
    parser.add_argument("--both-loops", action="store_true", help="measure the floor on the other loop too")
    parser.add_argument("--no-gateway", action="store_true", help="the floor only")
    parser.add_argument("--interpreted", action="store_true", help="the gateway without its compiled rooms, too")
    against = "the gateway of another checkout too; may be given more than once"
    parser.add_argument("--against", type=Path, metavar="DIR", action="append", default=argparse.SUPPRESS, help=against)
    parser.add_argument("--no-fusion", action="store_true", help="leave out the cost of fusion alone")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.add_argument(
        "--max-ratio", type=float, default=argparse.SUPPRESS, help="fail if the gateway's median ratio is larger"
    )
    args = parser.parse_args()
    if min(args.rounds, args.requests, args.callers, args.engines) < 1:
        parser.error("rounds, requests, callers and engines must be at least 1")
    if not 1 <= args.hits <= 100:
        parser.error("hits must be 1 to 100: a stub gives no more")
    args.max_ratio = getattr(args, "max_ratio", None)
    args.against = [checkout.resolve() for checkout in getattr(args, "against", [])]
    for checkout in args.against:
        if not (checkout / "app" / "main.py").is_file():
            parser.error(f"--against {checkout}: there is no gateway (app/main.py)")
    if len({"gateway", "interpreted", *(checkout.name for checkout in args.against)}) <= len(args.against) + 1:
        parser.error("--against: the names of the folders must differ, and none may be 'gateway' or 'interpreted'")
    args.k = min(WANTED, documents(args.engines, args.hits))
    args.stub = ["--engines", str(args.engines), "--hits", str(args.hits), "--bytes", str(args.bytes)]
    args.stub += ["--confidence", args.confidence, *(["--citations"] if args.citations else [])]
    return args


def main() -> int:
    """The exit status: 0, or 1 if something went wrong or the ratio asked for was exceeded."""
    args = arguments()
    rig.stop_on_signals()
    try:
        return 0 if report(args, run(args)) else 1
    except rig.RigError as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def report(args: argparse.Namespace, comparison: Comparison) -> bool:
    """Print what was measured; whether all is well."""
    if args.json:
        print(json.dumps(comparison.report()))
    else:
        print(f"{args.engines} engines x {args.hits} hits x {args.bytes} bytes, {args.callers} callers, ", end="")
        print(f"{args.rounds} rounds of {args.requests} requests\n")
        print("\n".join(comparison.lines()))
    for target, faults in comparison.faults().items():
        print(f"bench: {target} failed: {faults}", file=sys.stderr)
    good = not comparison.faults() and within(comparison, args.max_ratio)
    if not (args.json or args.no_fusion):
        good = fusion_cost() and good
    return good


def within(comparison: Comparison, max_ratio: float | None) -> bool:
    """Whether the gateway's median ratio keeps to the bound, if there is one; says so on stderr if not."""
    if max_ratio is None or "gateway" not in comparison.targets or comparison.ratio("gateway") <= max_ratio:
        return True
    print(f"bench: the ratio {comparison.ratio('gateway'):.3f} exceeds {max_ratio}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(main())
