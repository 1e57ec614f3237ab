"""What a gateway of 100 to 300 engines costs besides answering: start, reload, scrape, listings, console data.

For each number of engines: CPU milliseconds and bytes of one operation, and the longest wait for /livez meanwhile (0
if the operation ended before a probe was answered). The last column compares the CPU of the largest federation with
the smallest, per engine: 1.0 is linear.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import httpx2

from bench import rig

Row = dict[str, float]
REPEATS = 10
RPC = {"jsonrpc": "2.0", "id": 1}


class LongestWait(Thread):
    """Asks for /livez without pause; `seconds` is the longest time that an answer took."""

    def __init__(self, root: str) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        self._root = root
        self._over = Event()

    def run(self) -> None:
        with httpx2.Client(trust_env=False) as client:
            while not self._over.is_set():
                began = time.perf_counter()
                client.get(f"{self._root}/livez")
                self.seconds = max(self.seconds, time.perf_counter() - began)

    def stop(self) -> float:
        """The longest wait so far; ends the thread."""
        self._over.set()
        self.join()
        return self.seconds


def measured(child: rig.Child, root: str, once: Callable[[], int]) -> Row:
    """One operation, which returns the bytes of its answer: CPU without probes first, then the longest wait."""
    once()
    began = child.cpu_ns()
    size = 0
    for _ in range(REPEATS):
        size = once()
    cpu_ms = (child.cpu_ns() - began) / REPEATS / 1e6
    waits = LongestWait(root)
    waits.start()
    once()
    return {"cpu_ms": round(cpu_ms, 2), "bytes": size, "livez_ms": round(waits.stop() * 1000, 1)}


def federation(engines: int, folder: Path) -> dict[str, Row]:
    """Every operation of a gateway with so many engines."""
    with rig.stubs(["--engines", str(engines)], folder) as stubs, rig.gateway(stubs.urls, folder) as gateway:
        root = gateway.urls[0].removesuffix("/rcp")
        start = {"cpu_ms": round(gateway.cpu_ns() / 1e6, 1), "bytes": 0, "livez_ms": 0.0}
        with httpx2.Client(base_url=root, trust_env=False, timeout=60.0) as client:

            def get(path: str) -> Callable[[], int]:
                return lambda: len(client.get(path).raise_for_status().content)

            def call(method: str, **params: object) -> Callable[[], int]:
                return lambda: len(client.post("/rcp", json={**RPC, "method": method, "params": params}).content)

            def reload() -> int:
                """Every weight changes, which makes every engine a changed one."""
                path = folder / "rcp.json"
                document = json.loads(path.read_text())
                for entry in document["engines"]:
                    entry["weight"] = 3 - entry.get("weight", 1)
                path.write_text(json.dumps(document))
                before = gateway.log.read_text().count('"reloaded"')
                gateway.process.send_signal(signal.SIGHUP)
                rig.wait_until(gateway, lambda: gateway.log.read_text().count('"reloaded"') > before, "did not reload")
                return path.stat().st_size

            return {
                "start": start,
                "reload": measured(gateway, root, reload),
                "scrape": measured(gateway, root, get("/metrics")),
                "info": measured(gateway, root, call("info")),
                "catalog/list": measured(gateway, root, call("catalog/list")),
                "retrieve": measured(gateway, root, call("retrieve", query="q")),
                "retrieve, brief": measured(
                    gateway, root, call("retrieve", query="q", **{"x-gateway": {"report": "brief"}})
                ),
                "/engines": measured(gateway, root, get("/engines")),
                "/admin/engines": measured(gateway, root, get("/admin/engines")),
                "/admin/overlap": measured(gateway, root, get("/admin/overlap")),
            }


def main() -> int:
    """The exit status: 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="bench.many_engines", description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=[100, 200, 300])
    parser.add_argument("--json", action="store_true", help="one object")
    args = parser.parse_args()
    rig.stop_on_signals()
    found = {}
    for engines in args.engines:
        with tempfile.TemporaryDirectory(prefix="rcp-bench-") as folder:
            try:
                found[engines] = federation(engines, Path(folder))
            except rig.RigError as fault:
                print(f"bench: {fault}", file=sys.stderr)
                return 1
    if args.json:
        print(json.dumps(found))
        return 0
    smallest, largest = min(found), max(found)
    for name in found[smallest]:
        cells = [
            f"{engines}: {row['cpu_ms']:8.2f} ms {row['bytes']:9,.0f} B {row['livez_ms']:6.1f} ms"
            for engines, row in ((engines, found[engines][name]) for engines in args.engines)
        ]
        growth = found[largest][name]["cpu_ms"] / max(found[smallest][name]["cpu_ms"], 0.01) * smallest / largest
        print(f"{name:16} {' | '.join(cells)} | {growth:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
