"""nginx with the files of deploy/nginx: it accepts them, and in front of two gateways callers miss nothing."""

import asyncio
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from app.settings.schema import GatewaySettings
from tests.support.deployment import DEPLOY, program, said_by
from tests.support.listening_gateway import asking, listening, question
from tests.support.ports import free_port
from tests.support.running_gateway import PATIENCE, Json, entry, http_client, until
from tests.support.scripted_engine import Asked, ScriptedEngine

FILES = sorted((DEPLOY / "nginx").glob("*.conf"))


def here(file: Path, place: Path, addresses: Mapping[str, str]) -> Path:
    """A copy of the file for this machine: its folder for /tmp, and these addresses for those of containers."""
    text = file.read_text(encoding="utf-8").replace("/tmp/", f"{place}/").replace("/dev/stderr", str(place / "log"))
    for name, address in addresses.items():
        assert name in text
        text = text.replace(name, address)
    copy = place / file.name
    copy.write_text(text, encoding="utf-8")
    return copy


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nginx_accepts_it(file: Path, tmp_path: Path) -> None:
    """`nginx -t` finds no fault and has no complaint."""
    addresses = {f"gateway-{n}:8080": f"127.0.0.1:{n}" for n in (1, 2)} if file.name == "gateway.conf" else {}
    said = said_by(program("nginx"), "-t", "-p", tmp_path, "-c", here(file, tmp_path, addresses))
    assert "test is successful" in said
    assert "[warn]" not in said.replace('[warn] the "user" directive', "")


def seconds(directive: str) -> float:
    """The value of a directive of gateway.conf."""
    found = re.findall(rf"^\s+{directive} (\d+)s;", (DEPLOY / "nginx" / "gateway.conf").read_text(), re.MULTILINE)
    return min(map(float, found))


def test_its_patience_fits_the_gateways() -> None:
    """It waits for longer than an answer may take, and lets go of idle connections before the gateway does."""
    settings = GatewaySettings()
    assert seconds("proxy_read_timeout") > settings.retrieve.deadline_ms / 1000
    assert seconds("proxy_read_timeout") > settings.server.sse_comment_seconds
    assert seconds("keepalive_timeout") < settings.server.keep_alive_seconds
    size = re.search(r"client_max_body_size (\d+)m;", (DEPLOY / "nginx" / "gateway.conf").read_text())
    assert size is not None
    assert int(size[1]) * 2**20 > settings.server.max_body_bytes


@asynccontextmanager
async def nginx(place: Path, ports: tuple[int, int]) -> AsyncIterator[int]:
    """nginx in front of gateways on these ports, for as long as a block runs: its own port."""
    port = free_port()
    one, two = ports
    addresses = {"gateway-1:8080": f"127.0.0.1:{one}", "gateway-2:8080": f"127.0.0.1:{two}"}
    file = here(DEPLOY / "nginx" / "gateway.conf", place, {**addresses, "listen 8080": f"listen 127.0.0.1:{port}"})
    process = subprocess.Popen([program("nginx"), "-p", place, "-c", file, "-g", "daemon off; master_process off;"])
    try:
        await until(lambda: listens(port) or process.poll() is not None)
        assert process.poll() is None, (place / "log").read_text()
        yield port
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE)


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@asynccontextmanager
async def engine(wait: asyncio.Event | None = None) -> AsyncIterator[ScriptedEngine]:
    """An engine for as long as a block runs; with `wait` it answers a question once that is set."""
    scripted = await ScriptedEngine().start()
    if wait is not None:
        result = scripted.answers["retrieve"]

        async def held(_: Asked) -> Json:
            await wait.wait()
            return result

        scripted.answers["retrieve"] = held
    try:
        yield scripted
    finally:
        await scripted.stop()


@asynccontextmanager
async def caller(port: int) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who asks whoever listens on this port."""
    async with http_client(f"http://127.0.0.1:{port}") as client:
        yield client


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def test_both_gateways_answer_through_it(tmp_path: Path) -> None:
    """Requests are spread over both; what is for Prometheus is not to be had there."""
    async with (
        engine() as docs,
        listening([entry("a", docs)]) as (first, one),
        listening([entry("a", docs)]) as (second, two),
        nginx(tmp_path, (one, two)) as port,
        caller(port) as client,
    ):
        for _ in range(4):
            assert (await client.post("/rcp/ping", json=PING)).json()["id"] == 1
        hidden = await client.get("/metrics")
        assert (await client.get("/livez")).status_code == 200
    assert hidden.status_code == 404
    for state in (first, second):
        labels = {"method": "ping", "outcome": "ok"}
        assert state.metrics.registry.get_sample_value("rcp_gateway_requests_total", labels)


async def test_a_gateway_that_is_gone_is_not_missed(tmp_path: Path) -> None:
    """While one refuses connections every request is answered by the other."""
    async with (
        engine() as docs,
        listening([entry("a", docs)]) as (_, one),
        nginx(tmp_path, (one, free_port())) as port,
        caller(port) as client,
    ):
        answers = await asyncio.gather(*[client.post("/rcp", json=PING) for _ in range(10)])
    assert [answer.status_code for answer in answers] == [200] * 10


async def test_what_is_too_large_is_refused_by_the_gateway(tmp_path: Path) -> None:
    """Not by nginx, whose pages no RCP client can read: 413 with a JSON-RPC error."""
    async with (
        engine() as docs,
        listening([entry("a", docs)]) as (_, one),
        nginx(tmp_path, (one, one)) as port,
        caller(port) as client,
    ):
        answer = await client.post("/rcp", content=b'{"jsonrpc": "2.0", "x": "' + b"x" * 1_500_000 + b'"}')
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == -32013


async def test_an_event_stream_comes_frame_by_frame(tmp_path: Path) -> None:
    """Progress reaches the caller while an engine is still at work: nothing in between waits for more."""
    released = asyncio.Event()
    async with (
        engine() as quick,
        engine(released) as slow,
        listening([entry("a", quick), entry("b", slow)]) as (_, one),
        nginx(tmp_path, (one, one)) as port,
        asking(port, question()) as reader,
    ):
        await reader.head()
        assert await reader.progress()
        released.set()
        assert await reader.message()
