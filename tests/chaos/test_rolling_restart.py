"""Two gateways behind nginx are restarted one after the other, at 50 requests a second, and not one is lost.

The test plays the orchestrator: it looks at /readyz and tells the balancer whom to send requests to.
"""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.caller import Caller
from tests.chaos.gateway_process import GatewayProcess, start_gateway
from tests.chaos.sick_engine import SickEngine
from tests.support.ports import free_port

Json = dict[str, Any]

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
RATE = 50
MOST_UNDER_WAY = 50
"""Requests at a time: a machine that is too slow for the rate is busy enough with these."""
PATIENCE = 60.0
DRAIN_SECONDS = 5.0
"""In which the orchestrator must have seen that one is not ready, and have told the balancer, on a busy machine."""
SETTINGS: dict[str, Json] = {"server": {"drain_seconds": DRAIN_SECONDS}}
NAMES = ("one", "two")

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="needs nginx"),
]

CONFIGURATION = """
{user}
worker_processes 1;
daemon off;
pid {place}/nginx.pid;
error_log {place}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    upstream gateways {{
        {servers}
        keepalive 16;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateways;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream off;
        }}
    }}
}}
"""


class Balancer:
    """nginx in front of some ports; it sends no request a second time, so that whatever a gateway loses is lost."""

    def __init__(self, place: Path, ports: list[int]) -> None:
        self.port = free_port()
        self._place = place
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> "Balancer":
        assert NGINX is not None
        self._write(self._ports)
        self._process = subprocess.Popen([NGINX, "-p", str(self._place), "-c", str(self._place / "nginx.conf")])
        await until(lambda: listens(self.port))
        return self

    async def send_only_to(self, *ports: int) -> None:
        """Send requests to these gateways from now on, in the manner of nginx: new workers take over gracefully."""
        assert self._process is not None
        before = self._workers()
        self._write(list(ports))
        self._process.send_signal(1)
        await until(lambda: bool(self._workers() - before))

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, PATIENCE)

    def _workers(self) -> set[int]:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return {int(child) for child in children.split()}

    def _write(self, ports: list[int]) -> None:
        servers = "\n        ".join(
            f"server 127.0.0.1:{port}{'' if port in ports else ' down'} max_fails=0;" for port in self._ports
        )
        user = "user root root;" if os.geteuid() == 0 else ""
        text = CONFIGURATION.format(user=user, place=self._place, servers=servers, port=self.port)
        (self._place / "nginx.conf").write_text(text, encoding="utf-8")


class Load:
    """Requests at a steady rate, whether earlier ones were answered or not, while not too many are under way; each is
    counted with what it got.

    Each has a connection of its own: nginx, when it is told of a change, ends those that idle in front of it.
    """

    def __init__(self, port: int) -> None:
        self.answered = 0
        self.lost: list[str] = []
        self._port = port
        self._under_way: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Load":
        self._task = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await asyncio.gather(*self._under_way)

    async def _drive(self) -> None:
        due = time.monotonic()
        while True:
            if len(self._under_way) < MOST_UNDER_WAY:
                request = asyncio.create_task(self._ask())
                self._under_way.add(request)
                request.add_done_callback(self._under_way.discard)
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self) -> None:
        caller = Caller(self._port)
        try:
            answer = await caller.ask({"query": "q", "k": 10})
        except (OSError, EOFError, TimeoutError, ValueError, KeyError) as fault:
            self.lost.append(repr(fault))
            return
        finally:
            await caller.hang_up()
        if answer.status != 200 or not answer.response.get("result", {}).get("hits"):
            self.lost.append(f"HTTP {answer.status} {answer.response}")
        self.answered += 1


@asynccontextmanager
async def engines() -> AsyncIterator[list[Json]]:
    """The registry entries of two engines that are well."""
    pair = [await SickEngine(name, [f"{name}-{rank}" for rank in range(20)], random.Random(1)).start() for name in "ab"]
    try:
        yield [{"id": engine.name, "url": engine.url, "timeoutMs": 20_000} for engine in pair]
    finally:
        for engine in pair:
            await engine.stop()


async def test_a_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    """One after the other each gateway is told to end, is left alone once it says that it is not ready, serves until
    then, ends with 0, and comes back; every request on the way is answered."""
    gateways: list[GatewayProcess] = []
    async with engines() as entries:
        try:
            starting = (start_gateway(tmp_path, entries, SETTINGS, port=free_port(), name=name) for name in NAMES)
            gateways += await asyncio.gather(*starting)
            for gateway in gateways:
                await until(lambda port=gateway.port: ready(port) == 200)  # type: ignore[misc]
            ports = [gateway.port for gateway in gateways]
            balancer = await Balancer(tmp_path, ports).start()
            try:
                async with Load(balancer.port) as load:
                    await asyncio.sleep(0.5)
                    for place, name in enumerate(NAMES):
                        gateways[place] = await restarted(gateways[place], balancer, ports, tmp_path, entries, name)
                    await asyncio.sleep(0.5)
            finally:
                await balancer.stop()
            assert load.lost == []
            assert load.answered >= RATE
        finally:
            for gateway in gateways:
                if gateway.process.poll() is None:
                    gateway.process.kill()
                    gateway.process.wait()


async def restarted(
    gateway: GatewayProcess, balancer: Balancer, ports: list[int], place: Path, entries: list[Json], name: str
) -> GatewayProcess:
    """The gateway after a restart on its port, out of and back behind the balancer."""
    gateway.process.terminate()
    await until(lambda: ready(gateway.port) == 503)
    await balancer.send_only_to(*(port for port in ports if port != gateway.port))
    assert await asyncio.to_thread(gateway.process.wait, PATIENCE) == 0
    again = await start_gateway(place, entries, SETTINGS, port=gateway.port, name=name)
    await until(lambda: ready(again.port) == 200)
    await balancer.send_only_to(*ports)
    return again


def ready(port: int) -> int:
    """The status of /readyz, 0 if nobody answers."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE) as probe:
        probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
        return int(probe.recv(64).split(b" ")[1])
    return 0


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def until(condition: Any) -> None:
    """Wait until `condition` holds, looked at in a thread: it may wait for a socket."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)
