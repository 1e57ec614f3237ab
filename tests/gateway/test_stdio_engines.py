"""Engines that are child processes of a gateway: one that hangs is restarted, one that only crashes is left alone."""

import sys
from pathlib import Path
from typing import Any

from tests.support.gateway_process import gateway_process
from tests.support.running_gateway import Json, entry, until

PROGRAM = """
import json, os, sys, time
folder, mode = sys.argv[1:]
starts = os.path.join(folder, "starts")
with open(starts, "a") as file:
    file.write(".")
first = os.path.getsize(starts) == 1
described = {
    "protocolVersion": 1,
    "server": {"name": "child", "version": "1"},
    "capabilities": {"retrieve": {"maxK": 10, "modes": ["dense"]}},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = described
    elif mode == "crash":
        sys.exit(3)
    elif first:
        time.sleep(3600)
    else:
        result = {"hits": [{"id": "child", "score": 1}]} if message["method"] == "retrieve" else {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    if mode == "crash" and message["method"] == "initialize":
        sys.exit(3)
"""


def child(folder: Path, mode: str) -> Json:
    """The registry entry of an engine that behaves so."""
    program = folder / "engine.py"
    program.write_text(PROGRAM)
    return {"id": "child", "command": [sys.executable, "-ISu", str(program), str(folder), mode], "timeoutMs": 300}


def starts(folder: Path) -> int:
    """How often it was started."""
    file = folder / "starts"
    return file.stat().st_size if file.exists() else 0


async def test_an_engine_that_hangs_is_restarted(tmp_path: Path) -> None:
    """It shakes hands and then reads no more: after three unanswered calls or pings another process takes its place."""
    settings = {"engines": {"health_interval_seconds": 0.1, "stdio_unanswered": 3}}
    async with gateway_process(tmp_path, [child(tmp_path, "hang")], settings) as gateway:
        ended = await gateway.until_told("engine_process_ended")
        assert ended["detail"] == "the engine's process left 3 calls in a row unanswered and was killed"
        hits: list[Any] = []

        async def served() -> bool:
            answer = (await gateway.retrieve()).json()
            hits.extend(answer.get("result", {}).get("hits", []))
            return bool(hits)

        while not await served():
            assert gateway.process.returncode is None
        assert hits[0]["id"] == "child"
        assert starts(tmp_path) == 2


async def test_an_engine_that_only_crashes_backs_off(engines: Any, tmp_path: Path) -> None:
    """A good handshake right before each crash does not make the pauses short again; the log says how long they are."""
    settings = {"engines": {"reconnect_max_seconds": 0.1, "stdio_restart_max_seconds": 1.0}}
    entries = [entry("e", await engines()), child(tmp_path, "crash")]
    async with gateway_process(tmp_path, entries, settings) as gateway:
        await until(lambda: len(gateway.told("engine_process_ended")) >= 5)
        told = gateway.told("engine_process_ended")
    assert [line["inARow"] for line in told[:5]] == [1, 2, 3, 4, 5]
    assert [line["restartInSeconds"] for line in told[:5]] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert all(line["detail"] == "the engine's process exited with status 3" for line in told)
