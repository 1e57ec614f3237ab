"""The gateway as an operator runs it: a process of its own, its files, its signals, its log and its exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from resource import RLIMIT_NOFILE, setrlimit
from typing import Any

import httpx2

from tests.support.running_gateway import PATIENCE, START_SECONDS, Json, until

PROJECT = Path(__file__).parents[2]


class GatewayProcess:
    """One `rcp-gateway serve`. What it logs is in `log`, a parsed line each."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process, client: httpx2.AsyncClient) -> None:
        self.folder = folder
        self.process = process
        self.client = client
        self.log: list[Json] = []
        self.text = ""
        self.port = 0
        self._ear = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.text += line.decode()
            with suppress(ValueError):
                told = json.loads(line)
                self.log.append(told)
                if told.get("event") == "listening":
                    self.port = told["port"]

    def told(self, event: str) -> list[Json]:
        """The log lines of one event so far."""
        return [line for line in self.log if line.get("event") == event]

    async def until_told(self, event: str, times: int = 1) -> Json:
        """The log line of this event, once it has come so often."""
        await until(lambda: len(self.told(event)) >= times or self.process.returncode is not None, START_SECONDS)
        assert len(self.told(event)) >= times, self.text
        return self.told(event)[times - 1]

    def url(self, path: str = "/rcp") -> str:
        """Where it serves `path`."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def retrieve(self, **params: Any) -> httpx2.Response:
        """The HTTP answer to one retrieve."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q", **params}}
        return await self.client.post(self.url(), json=message)

    async def ready(self) -> int:
        """The status of its readiness probe; 0 if nobody listens."""
        try:
            return (await self.client.get(self.url("/readyz"))).status_code
        except httpx2.TransportError:
            return 0

    async def metric(self, series: str) -> float | None:
        """The value of a series, written as in the exposition; None if there is none."""
        text = (await self.client.get(self.url("/metrics"))).text
        found = [line for line in text.splitlines() if line.startswith(f"{series} ")]
        return float(found[0].rpartition(" ")[2]) if found else None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has ended and all it wrote is read."""
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
            await self._ear
        return code

    async def kill(self) -> None:
        """End it by force, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.ended()


def write_files(folder: Path, entries: list[Json], settings: Json) -> None:
    """Write its registry and settings, each in one step, as tools do."""
    for name, content in (("rcp.json", {"engines": entries}), ("gateway.yaml", settings)):
        fresh = folder / f".{name}"
        fresh.write_text(json.dumps(content))  # JSON is YAML
        fresh.replace(folder / name)


@asynccontextmanager
async def gateway_process(
    folder: Path,
    entries: list[Json],
    settings: Json | None = None,
    *more: str,
    reach: bool = True,
    write: bool = True,
    descriptors: int | None = None,
) -> AsyncIterator[GatewayProcess]:
    """A gateway process in a session of its own, ready unless it is not to `reach` anybody; ended by force at last.

    Without `write` the files are there already. `descriptors`: how many it may open, where that is to be few.
    """
    if write:
        write_files(folder, entries, settings or {})
    files = ["--registry", str(folder / "rcp.json"), "--config", str(folder / "gateway.yaml")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app", "serve", *files, "--port", "0", *more),
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=None if descriptors is None else partial(setrlimit, RLIMIT_NOFILE, (descriptors, descriptors)),
    )
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        gateway = GatewayProcess(folder, process, client)
        try:
            await until(lambda: gateway.port != 0 or process.returncode is not None, START_SECONDS)
            async with asyncio.timeout(START_SECONDS):
                while reach and await gateway.ready() != 200:
                    assert process.returncode is None, gateway.text
                    await asyncio.sleep(0.02)
            yield gateway
        finally:
            await gateway.kill()
