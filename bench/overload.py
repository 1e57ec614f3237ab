"""Overload: what becomes of more callers than one gateway can serve, and how late its latest answer is.

For each number of callers it prints the good answers per second, the refusals, and the latest answer relative to its
deadline, by the gateway's own log and as the callers saw it. Gateway, engines and callers are processes of their own.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.load import Caller, Crew
from bench.rig import Child, gateway, stop_on_signals, stubs

GIVE_UP = 120.0
"""Seconds for one run."""


class PatientCaller(Caller):
    """A caller that pauses for as long as a refusal asks it to."""

    def _answered(self, status: bytes, body: bytes) -> None:
        if b"retryAfterMs" not in body:
            super()._answered(status, body)
            return
        self.crew.tally.faults[self.crew.fault_of(status, body, self.asked_id) or "refused"] += 1
        pause = orjson.loads(body)["error"]["data"]["retryAfterMs"] / 1000
        asyncio.get_running_loop().call_later(pause, self.ask)


class OverloadCrew(Crew):
    """Callers that ask for `seconds`, each request with a deadline if `deadline_ms` is given."""

    def __init__(self, url: str, callers: int, *, deadline_ms: int | None, patient: bool) -> None:
        super().__init__(url, callers)
        self.deadline_ms = deadline_ms
        self.kind = PatientCaller if patient else Caller
        self.ends = 0.0
        self.number = 0
        self.latest = 0.0

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.size):
            _, caller = await loop.create_connection(lambda: self.kind(self), self.host, self.port)
            self.callers.append(caller)

    def next_question(self) -> tuple[int, bytes] | None:
        if asyncio.get_running_loop().time() >= self.ends:
            return None
        self.number += 1
        params: dict[str, Any] = {"query": f"how do engines rank passage number {self.number % 64}", "k": self.k}
        if self.deadline_ms is not None:
            params["_meta"] = {"deadlineMs": self.deadline_ms}
        body = orjson.dumps({"jsonrpc": "2.0", "id": self.number, "method": "retrieve", "params": params})
        head = f"POST /rcp/retrieve HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Length: {len(body)}\r\n\r\n"
        return self.number, head.encode() + body

    async def ask_for(self, seconds: float) -> None:
        """Ask until `seconds` have passed and all answers are there."""
        self.ends = asyncio.get_running_loop().time() + seconds
        await self.run(0, limit=seconds + GIVE_UP)


def latest_ms(log: Path, offset: int) -> tuple[float, float]:
    """(the longest `ms` of the request lines after `offset` bytes of the log, their 99th percentile)."""
    times = []
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if b'"event":"request"' in line.replace(b'": ', b'":'):
                times.append(float(json.loads(line)["ms"]))
    times.sort()
    return (times[-1], times[int(len(times) * 0.99)]) if times else (0.0, 0.0)


async def overload(
    child: Child, callers: int, seconds: float, deadline_ms: int | None, *, patient: bool
) -> dict[str, Any]:
    """One run; its figures."""
    offset = child.log.stat().st_size
    crew = OverloadCrew(child.urls[0], callers, deadline_ms=deadline_ms, patient=patient)
    try:
        await crew.connect()
        cpu = child.cpu_ns()
        await crew.ask_for(seconds)
        cpu = child.cpu_ns() - cpu
    finally:
        crew.close()
    tally = crew.tally
    longest, p99 = latest_ms(child.log, offset)
    deadline = 10_000 if deadline_ms is None else deadline_ms
    return {
        "callers": callers,
        "deadlineMs": deadline,
        "seconds": round(tally.seconds, 2),
        "goodputPerSecond": round(len(tally.latencies) / tally.seconds, 1),
        "cpuSeconds": round(cpu / 1e9, 2),
        "goodPerCpuSecond": round(len(tally.latencies) / (cpu / 1e9), 1),
        "p50Ms": round(tally.percentile_ms(0.5), 1),
        "slowestGoodMs": round(tally.percentile_ms(1.0), 1),
        "loggedLatestMs": longest,
        "loggedP99Ms": p99,
        "latestAfterDeadlineMs": round(longest - deadline, 1),
        "others": dict(tally.faults),
    }


def run(counts: Sequence[int], engines: int, seconds: float, deadline_ms: int | None, *, patient: bool) -> None:
    """Print one line of JSON for each number of callers. Raises RigError."""
    with tempfile.TemporaryDirectory() as place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        workspace = Path(place)
        with (
            stubs(["--engines", str(engines)], workspace) as engine,
            gateway(engine.urls, workspace) as child,
        ):
            runner.run(overload(child, 16, 1.0, None, patient=False))  # warm up
            for count in counts:
                figures = runner.run(overload(child, count, seconds, deadline_ms, patient=patient))
                print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.overload", description=__doc__)
    parser.add_argument("callers", type=int, nargs="*", default=[256, 400, 2000])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--deadline-ms", type=int, help="`_meta.deadlineMs` of every request")
    parser.add_argument("--patient", action="store_true", help="callers honour `retryAfterMs`")
    args = parser.parse_args()
    stop_on_signals()
    run(args.callers, args.engines, args.seconds, args.deadline_ms, patient=args.patient)


if __name__ == "__main__":
    main()
