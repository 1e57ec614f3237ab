"""The gateway as the process that operators start, for tests that look at it from outside: memory, descriptors, log."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.running_gateway import START_SECONDS

PROJECT = Path(__file__).parents[2]

Json = dict[str, Any]


@dataclass(frozen=True)
class Holdings:
    """What a process holds: bytes of memory, open descriptors, sockets among them, threads."""

    rss: int
    descriptors: int
    sockets: int
    threads: int


@dataclass
class GatewayProcess:
    """One gateway that serves."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def holdings(self) -> Holdings:
        """What it holds right now, as Linux tells."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        number = {key: int(re.search(rf"^{key}:\s+(\d+)", status, re.MULTILINE)[1]) for key in ("VmRSS", "Threads")}  # type: ignore[index]
        links = []
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                links.append(os.readlink(link))  # noqa: PTH115 - a socket is no path
            except FileNotFoundError:
                continue
        sockets = sum(link.startswith("socket:") for link in links)
        return Holdings(number["VmRSS"] * 1024, len(links), sockets, number["Threads"])

    def logged(self, *words: str) -> list[str]:
        """The lines of its log that have one of these words."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if any(word in line for word in words)]

    async def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send it the signal and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return await asyncio.to_thread(self.process.wait, seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
            raise AssertionError(f"the gateway was still there {seconds:g} seconds after {number.name}") from None


async def start_gateway(
    place: Path, engines: list[Json], settings: Mapping[str, Json], port: int = 0, name: str = "gateway"
) -> GatewayProcess:
    """Start a gateway with these files in `place`, and wait until it listens."""
    registry, config, log = (place / f"{name}.{ending}" for ending in ("json", "yaml", "log"))
    registry.write_text(json.dumps({"engines": engines}), encoding="utf-8")
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "app", "serve", "--registry", str(registry), "--config", str(config)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], cwd=PROJECT, stdout=out, stderr=out
        )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not (bound := _bound(log)):
                if process.poll() is not None:
                    raise AssertionError(f"the gateway did not start:\n{log.read_text()}")
                await asyncio.sleep(0.02)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return GatewayProcess(process, bound, log)


@asynccontextmanager
async def gateway_process(
    place: Path, engines: list[Json], settings: Mapping[str, Json]
) -> AsyncIterator[GatewayProcess]:
    """A gateway for as long as a block runs; it must end with 0."""
    gateway = await start_gateway(place, engines, settings)
    try:
        yield gateway
        assert await gateway.end(signal.SIGINT) == 0, "the gateway did not end in good order"  # it need not drain
    finally:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


def _bound(log: Path) -> int:
    """The port that it says it listens on; 0 if it has not said so yet."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if '"event":"listening"' in line.replace(" ", ""):
            return int(json.loads(line)["port"])
    return 0
