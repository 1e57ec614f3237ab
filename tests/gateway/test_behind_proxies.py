"""Behind real proxies that keep their connections and pass offers to upgrade on, every caller gets its own answer."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.balancer import balanced
from tests.support.deployment import program
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.ports import free_port
from tests.support.running_gateway import PATIENCE, entry, until
from tests.support.scripted_engine import hit

CALLERS = 120

PACKET = 90
"""Bytes that the network in front of the gateway carries at a time, so that it reads every head in pieces."""

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream gateway {{ server 127.0.0.1:{gateway}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_request_buffering {buffering};
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""

CADDY = """
{{
    admin off
    auto_https off
}}
http://:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{gateway}
}}
"""


@asynccontextmanager
async def proxy(kind: str, gateway: int, folder: Path) -> AsyncIterator[int]:
    """A proxy in front of the gateway at this port, for as long as a block runs: its own port."""
    port = free_port()
    file = folder / kind
    if kind == "caddy":
        command = [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(file)]
        file.write_text(CADDY.format(port=port, gateway=gateway), encoding="utf-8")
    else:
        command = [program("nginx"), "-p", str(folder), "-c", str(file)]
        buffering = "off" if kind == "nginx unbuffered" else "on"
        file.write_text(NGINX.format(port=port, gateway=gateway, folder=folder, buffering=buffering), encoding="utf-8")
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "said").open("w") as said:
        process = await asyncio.create_subprocess_exec(*command, env=homes, stdout=said, stderr=said)
    try:
        await until(lambda: _listens(port) or process.returncode is not None)
        assert process.returncode is None, (folder / "said").read_text()
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@asynccontextmanager
async def echoing_gateway(engines: Any, folder: Path) -> AsyncIterator[GatewayProcess]:
    """A gateway over an engine whose only hit is the query."""
    engine = await engines()

    async def echo(request: Any) -> Any:
        await asyncio.sleep(0)
        return {"hits": [hit(request.params["query"])]}

    engine.answers["retrieve"] = echo
    async with gateway_process(folder, [entry("e", engine)]) as gateway:
        yield gateway


def retrieve(name: str, *lines: str, target: str = "/rcp", inner: str = "") -> tuple[bytes, bytes]:
    """Head and body of a question whose id and query are `name`, with a body of another kind if `inner` is given."""
    asked = {"jsonrpc": "2.0", "id": name, "method": "retrieve", "params": {"query": name}}
    body = inner.encode() if inner else json.dumps(asked).encode()
    head = [f"POST {target} HTTP/1.1", "Host: g", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n", body


OFFERS = (
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Connection: UpGrade", "UpGrade: x"),
    ("Connection: keep-alive, upgrade", "Upgrade: h2c", "Authorization: Bearer " + "t" * 1300),
)


async def call(port: int, head: bytes, body: bytes, *, apart: bool) -> tuple[int, Any]:
    """Status and JSON body of the answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head)
        if apart:
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(body)
        async with asyncio.timeout(PATIENCE):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            answer = await reader.readexactly(length)
        return int(lines[0].split(" ")[1]), json.loads(answer) if answer.startswith(b"{") else None
    finally:
        writer.close()


async def innocent(port: int, number: int) -> bool:
    """Whether a caller that may offer to upgrade gets the answer to its own question."""
    name = f"caller-{number}"
    lines = OFFERS[number % 3] if number % 2 else ()
    status, answer = await call(port, *retrieve(name, *lines), apart=number % 4 == 3)
    return (status, answer["id"], [hit["id"] for hit in answer["result"]["hits"]]) == (200, name, [name])


async def hostile(port: int, number: int) -> bool:
    """Whether a body that is itself a request is taken for a body."""
    smuggled = b"".join(retrieve(f"smuggled-{number}")).decode()
    request = retrieve("", *OFFERS[number % 3], target="/nonsense", inner=smuggled)
    status, answer = await call(port, *request, apart=number % 2 == 0)
    return status == 404 and "smuggled" not in json.dumps(answer)


@pytest.mark.parametrize("kind", ["nginx", "nginx unbuffered", "caddy"])
async def test_answers_never_shift(engines: Any, tmp_path: Path, kind: str) -> None:
    """Of many callers at once every one gets its own answer, whatever some of them offer and send."""
    async with (
        echoing_gateway(engines, tmp_path) as gateway,
        balanced(gateway.port, packet=PACKET) as network,
        proxy(kind, network.port, tmp_path) as port,
    ):
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> bool:
            async with limit:
                return await (hostile if number % 3 == 2 else innocent)(port, number)

        rights = await asyncio.gather(*[one(number) for number in range(CALLERS)])
        assert rights == [True] * CALLERS
        assert not [line for line in gateway.log if line.get("method") == "retrieve" and "smuggled" in str(line)]
        asked = await gateway.metric('rcp_gateway_requests_total{method="retrieve",outcome="ok"}')
        assert asked == sum(number % 3 != 2 for number in range(CALLERS))


JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class Ask {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int n = 0; n < 3; n++) {
            String body = "{\\"jsonrpc\\":\\"2.0\\",\\"id\\":" + n + ",\\"method\\":\\"ping\\",\\"params\\":{}}";
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("Authorization", "Bearer " + "t".repeat(1300))
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body());
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK: install default-jdk-headless")
async def test_the_client_of_java_is_answered(engines: Any, tmp_path: Path) -> None:
    """It offers h2c with its first request, whose long token makes head and body two reads."""
    (tmp_path / "Ask.java").write_text(JAVA, encoding="utf-8")
    async with (
        gateway_process(tmp_path, [entry("e", await engines())]) as gateway,
        balanced(gateway.port, packet=PACKET) as network,
    ):
        url = f"http://127.0.0.1:{network.port}/rcp"
        command = ("java", "-XX:TieredStopAtLevel=1", str(tmp_path / "Ask.java"), url)
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, complaints = await asyncio.wait_for(process.communicate(), PATIENCE)
    if b"compiler" in complaints:  # a runtime without a compiler
        pytest.skip("needs a JDK, not a JRE alone: install default-jdk-headless")
    lines = said.decode().splitlines()
    assert lines == [f'200 {{"jsonrpc":"2.0","id":{n},"result":{{}}}}' for n in range(3)], complaints.decode()
