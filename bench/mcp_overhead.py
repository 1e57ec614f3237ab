"""What MCP costs over RCP: the same retrieve at /rcp and as a tool call at /mcp, alternately, in CPU of the gateway.

Three forms are compared: RCP, MCP's revision 2026-07-28, and MCP before it.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import uvloop

from bench import rig
from bench.load import VARIANTS, Crew

MODERN, BEFORE = "2026-07-28", "2025-11-25"

Timings = dict[str, list[float]]
"""Form -> microseconds of gateway CPU per request, one number for each round."""


class McpCrew(Crew):
    """Callers of the tool `retrieve`."""

    def __init__(self, url: str, version: str, callers: int, k: int) -> None:
        self.version = version
        super().__init__(url, callers, k)

    def requests(self, authority: str, path: str, params: dict[str, Any]) -> list[bytes]:
        return [prebuilt_call(authority, self.version, number, self.k) for number in range(VARIANTS)]

    def fault_of(self, status: bytes, body: bytes, asked_id: int) -> str | None:
        """Why an answer is not the one that was asked for; None if it is."""
        if status != b"HTTP/1.1 200":
            return f"status {status[9:].decode('latin-1')}"
        message = orjson.loads(body)
        if message.get("id") != asked_id:
            return "another id"
        result = message.get("result", {})
        if "structuredContent" not in result:
            return "no result"
        found = result["structuredContent"]
        if any(engine["status"] != "ok" for engine in found["engines"]):
            return "degraded"
        return None if len(found["hits"]) == self.k else f"{len(found['hits'])} hits"


def prebuilt_call(authority: str, version: str, number: int, k: int) -> bytes:
    """One whole HTTP request."""
    query = f"how do engines rank passage number {number}"
    params: dict[str, Any] = {"name": "retrieve", "arguments": {"query": query, "k": k}}
    head = f"POST /mcp HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
    head += f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {version}\r\n"
    if version == MODERN:
        prefix = "io.modelcontextprotocol"
        params["_meta"] = {f"{prefix}/protocolVersion": version, f"{prefix}/clientCapabilities": {}}
        head += "Mcp-Method: tools/call\r\nMcp-Name: retrieve\r\n"
    body = orjson.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def compare(target: rig.Child, args: argparse.Namespace) -> Timings:
    """Every form in turn, round after round. Raises RigError."""
    url = target.urls[0]
    crews = {
        "rcp": Crew(url, args.callers, args.k),
        f"mcp {MODERN}": McpCrew(url, MODERN, args.callers, args.k),
        f"mcp {BEFORE}": McpCrew(url, BEFORE, args.callers, args.k),
    }
    timings: Timings = {form: [] for form in crews}
    try:
        for crew in crews.values():
            await crew.connect()
            await crew.run(args.callers * 4)  # warm
        for _ in range(args.rounds):
            for form, crew in crews.items():
                before = target.cpu_ns()
                tally = await crew.run(args.requests)
                if tally.faults:
                    raise target.fault(f"failed at {form}: {dict(tally.faults)}")
                timings[form].append((target.cpu_ns() - before) / args.requests / 1000)
    except OSError as fault:
        raise target.fault(f"could not be asked ({fault})") from None
    finally:
        for crew in crews.values():
            crew.close()
    return timings


def run(args: argparse.Namespace) -> Timings:
    """Start everything, compare, stop everything. Raises RigError."""
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rcp-bench-")))
        engines = stack.enter_context(rig.stubs(["--engines", str(args.engines)], workspace)).urls
        target = stack.enter_context(rig.gateway(engines, workspace))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(compare(target, args))


def report(timings: Timings) -> dict[str, Any]:
    """Medians in microseconds, and how many times RCP's they are, round by round."""
    return {
        form: {
            "cpuUs": round(median(values)),
            "overRcpUs": round(median(mine - plain for mine, plain in zip(values, timings["rcp"], strict=True))),
            "ratio": round(median(mine / plain for mine, plain in zip(values, timings["rcp"], strict=True)), 2),
        }
        for form, values in timings.items()
    }


def main() -> int:
    """The exit status: 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="bench.mcp_overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=1000, help="per form and round")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rig.stop_on_signals()
    try:
        outcome = report(run(args))
    except rig.RigError as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(outcome))
        return 0
    for form, row in outcome.items():
        print(f"{form:<16} {row['cpuUs']:>6} us  {row['overRcpUs']:>+6} us  x{row['ratio']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
