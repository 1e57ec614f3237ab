"""What the ratio of CPU does not show: latency added, the cost of event streams, large answers.

Three tables, each against processes of its own: the latency that the gateway adds to that of its engines; CPU and bytes
of an event stream against the buffered answer; the longest wait for /livez and the resident memory under large answers.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import uvloop

from bench import rig
from bench.load import Crew, StreamCrew, Tally

ENGINE_MS = 150.0
"""Latency of every engine in the table of latencies: enough that 64 callers do not fill a core."""
CALLERS = (1, 16, 64)
SETTLE_SECONDS = 5.0
"""After the last large answer, before memory is read again."""

Row = dict[str, Any]


async def driven(target: rig.Child, crew: Crew, requests: int) -> Tally:
    """One run of a connected crew. Raises RigError unless every answer is whole."""
    tally = await crew.run(requests)
    if tally.faults:
        raise target.fault(f"failed: {dict(tally.faults)}")
    return tally


@contextmanager
def connected(runner: asyncio.Runner, *crews: Crew) -> Iterator[None]:
    """The crews with their connections open."""
    try:
        for crew in crews:
            runner.run(crew.connect())
        yield
    finally:
        for crew in crews:
            crew.close()


def gateway(
    stack: ExitStack, args: argparse.Namespace, *stub: str, timeout_ms: int = 2000
) -> tuple[list[str], rig.Child]:
    """The engines and a gateway in front of them."""
    engines = stack.enter_context(rig.stubs(stub, args.workspace)).urls
    checkout = rig.PROJECT if args.python == sys.executable else args.workspace
    opened = rig.gateway(engines, args.workspace, checkout=checkout, python=args.python, timeout_ms=timeout_ms)
    return engines, stack.enter_context(opened)


def latency(runner: asyncio.Runner, args: argparse.Namespace) -> list[Row]:
    """What floor and gateway add to the latency of the slowest engine, in milliseconds."""
    rows = []
    with ExitStack() as stack:
        engines, measured = gateway(stack, args, "--engines", "8", "--latency-ms", str(ENGINE_MS))
        for target in (stack.enter_context(rig.floor(engines, args.workspace)), measured):
            for callers in CALLERS:
                crew = Crew(target.urls[0], callers)
                with connected(runner, crew):
                    runner.run(driven(target, crew, 2 * callers))  # warm
                    tally = runner.run(driven(target, crew, int(max(100, 20 * callers) * args.scale) or 1))
                added = {f"p{share * 100:.0f}Ms": tally.percentile_ms(share) - ENGINE_MS for share in (0.5, 0.99)}
                rows.append({"target": target.name, "callers": callers, **{k: round(v, 1) for k, v in added.items()}})
    return rows


def stream(runner: asyncio.Runner, args: argparse.Namespace) -> list[Row]:
    """CPU and bytes of an event stream against the buffered answer at 32 engines, k 50; alternating."""
    requests = int(64 * args.scale) or 1
    cpu: dict[str, list[float]] = {"buffered": [], "stream": []}
    with ExitStack() as stack:
        _, target = gateway(stack, args, "--engines", "32")
        crews = {"buffered": Crew(target.urls[0], 8, 50), "stream": StreamCrew(target.urls[0], 8, 50)}
        stack.enter_context(connected(runner, *crews.values()))
        for crew in crews.values():
            runner.run(driven(target, crew, 16))  # warm
            crew.received = 0
        for _ in range(args.rounds):
            for name, crew in crews.items():
                before = target.cpu_ns()
                runner.run(driven(target, crew, requests))
                cpu[name].append((target.cpu_ns() - before) / requests / 1000)
    ratios = [mine / plain for mine, plain in zip(cpu["stream"], cpu["buffered"], strict=True)]
    return [
        {
            "form": name,
            "cpuUs": round(median(cpu[name])),
            "ratio": round(median(ratios), 2) if name == "stream" else 1.0,
            "spread": [round(min(ratios), 2), round(max(ratios), 2)] if name == "stream" else [1.0, 1.0],
            "bytes": crew.received // (requests * args.rounds),
        }
        for name, crew in crews.items()
    ]


def large(runner: asyncio.Runner, args: argparse.Namespace) -> list[Row]:
    """32 engines with 200 hits of 10 kB for 8 callers: the longest wait for /livez, and resident memory."""
    with ExitStack() as stack:
        _, target = gateway(stack, args, "--engines", "32", "--bytes", "10000", timeout_ms=60_000)
        before = target.rss_bytes()
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, target.rss_bytes())

        crew = Crew(target.urls[0], 8, 100, _meta={"deadlineMs": 60_000})
        with connected(runner, crew), probing(target.urls[0], look) as waits:
            tally = runner.run(driven(target, crew, int(32 * args.scale) or 8))
        time.sleep(SETTLE_SECONDS)
        row = {
            "livezMaxMs": round(max(waits) * 1000, 1),
            "livezP99Ms": round(sorted(waits)[int(len(waits) * 0.99)] * 1000, 1),
            "p50Ms": round(tally.percentile_ms(0.5)),
            "rssBeforeMb": before >> 20,
            "rssMostMb": most >> 20,
            "rssAfterMb": target.rss_bytes() >> 20,
        }
    return [row]


@contextmanager
def probing(url: str, look: Callable[[], None]) -> Iterator[list[float]]:
    """Asks /livez again and again from a thread meanwhile: the seconds that each answer took."""
    waits: list[float] = []
    done = Event()
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")

    def ask() -> None:
        with socket.create_connection((host, int(port))) as connection:
            while not done.wait(0.002):
                began = time.perf_counter()
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n")
                connection.recv(4096)
                waits.append(time.perf_counter() - began)
                look()

    thread = Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        done.set()
        thread.join()


TABLES: dict[str, Callable[[asyncio.Runner, argparse.Namespace], list[Row]]] = {
    "latency": latency,
    "stream": stream,
    "large": large,
}


def main() -> int:
    """The exit status: 1 if something went wrong."""
    parser = argparse.ArgumentParser(
        prog="bench.tables", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all of them if none")
    parser.add_argument("--rounds", type=int, default=5, help="of the table of streams")
    parser.add_argument("--scale", type=float, default=1.0, help="less than 1 for a quick look")
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="interpreter that runs the gateway")
    parser.add_argument("--json", action="store_true", help="one object")
    args = parser.parse_args()
    if unknown := set(args.tables).difference(TABLES):
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    rig.stop_on_signals()
    outcome = {}
    try:
        for name in args.tables or TABLES:
            with tempfile.TemporaryDirectory(prefix="rcp-bench-") as folder:
                args.workspace = Path(folder)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    outcome[name] = TABLES[name](runner, args)
            if not args.json:
                show(name, outcome[name])
    except rig.RigError as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(outcome))
    return 0


def show(name: str, rows: list[Row]) -> None:
    """One table for people."""
    print(name)
    print("".join(f"{key:>14}" for key in rows[0]))
    for row in rows:
        print("".join(f"{value!s:>14}" for value in row.values()))
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
