"""HTTP/2 to an engine behind nginx and behind Caddy: calls, cancelled calls next to them, and connections that end."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("h2", reason="needs the extra http2")

from app.engines.http.http2_client import Http2Transport
from app.settings.schema import EngineEntry, EnginesSettings
from tests.support.authority import Authority
from tests.support.ports import free_port
from tests.support.raw_peer import Line, RawPeer, http_answer, rpc_answer
from tests.support.running_gateway import until

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} ssl http2; server_name localhost;
    ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
    keepalive_requests 100; client_max_body_size 10m;
    location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; }}
  }}
}}
"""

CADDY = """
{{
  admin off
  auto_https off
  storage file_system {folder}/caddy
}}
https://localhost:{port} {{
  bind 127.0.0.1
  tls {folder}/server.pem {folder}/server.key
  reverse_proxy 127.0.0.1:{upstream}
}}
"""


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


@contextmanager
def proxy(name: str, folder: Path, authority: Authority, upstream: int) -> Iterator[int]:
    """The port of a proxy in front of an engine."""
    program = _found(name)
    if program is None:
        pytest.skip(f"needs {name}")
    issued = authority.ca.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    issued.private_key_pem.write_to_path(str(folder / "server.key"))
    port, file = free_port(), folder / f"{name}.conf"
    template = NGINX if name == "nginx" else CADDY
    file.write_text(template.format(folder=folder, port=port, upstream=upstream), encoding="utf-8")
    command = [program, "-p", str(folder), "-c", str(file)]
    if name == "caddy":
        command = [program, "run", "--config", str(file), "--adapter", "caddyfile"]
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
        try:
            yield port
        finally:
            process.terminate()
            process.wait()


async def _listens(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", ["nginx", "caddy"])
async def test_cancelled_calls_hurt_nobody(tmp_path: Path, name: str) -> None:
    """300 calls are answered next to as many that are cancelled; nginx ends its connections every 100 requests."""
    ended = 0

    async def script(line: Line) -> None:
        nonlocal ended
        while request := await line.request():
            if request.message["params"].get("hangs"):
                await line.until_ended()
                ended += 1
                return
            line.send(http_answer(rpc_answer(request.id, {"text": "x" * 30_000})))

    authority = Authority(tmp_path)
    async with RawPeer(script) as engine:
        with proxy(name, tmp_path, authority, engine.port) as port:
            async with asyncio.timeout(20):
                await _listens(port)
            entry = EngineEntry(
                id="docs", url=f"https://localhost:{port}/rcp", client="httpx", tls=authority.trusted, timeout_ms=20_000
            )
            transport = Http2Transport(entry, EnginesSettings())
            try:
                await transport.call("ping", {})
                assert "HTTP/2" in repr(transport)

                async def innocent() -> int:
                    return len((await transport.call("retrieve", {"padding": "x" * 5000})).result["text"])

                async def cancelled(turns: int) -> None:
                    call = asyncio.create_task(transport.call("retrieve", {"padding": "x" * 50_000}))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    call.cancel()
                    with suppress(asyncio.CancelledError):
                        await call

                for _ in range(30):
                    outcomes = await asyncio.gather(*(innocent() for _ in range(10)), *map(cancelled, range(10)))
                    assert outcomes[:10] == [30_000] * 10

                hanging = asyncio.create_task(transport.call("retrieve", {"hangs": True}))
                await until(lambda: any(one.message["params"].get("hangs") for one in engine.requests))
                hanging.cancel()
                await until(lambda: ended == 1)  # the proxy passes the reset on, so that the engine can stop
            finally:
                await transport.close()
