"""Several gateway processes, one Redis, one address in front: to callers they are one, and one may die."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.gateway_process import GatewayProcess, start_gateway
from tests.support.balancer import Balancer, balanced
from tests.support.corpora import corpus, ids, serving
from tests.support.listening_gateway import asking, question
from tests.support.ports import free_port
from tests.support.running_gateway import START_SECONDS, entry
from tests.support.scripted_engine import Asked
from tests.support.shared_state import unique
from tests.support.tenancy import tenant

Json = dict[str, Any]

RED, BLUE = "red-key-0123456789", "blue-key-0123456789"
CALLERS = 12


def shared(url: str) -> Json:
    """The section `state` of gateways that share it; on a busy machine Redis is given time."""
    return {"url": url, "prefix": unique(), "timeout_ms": 10_000, "replicas": 2}


@asynccontextmanager
async def replicas(
    place: Path, entries: list[Json], settings: Json
) -> AsyncIterator[tuple[Balancer, list[GatewayProcess]]]:
    """Two gateways with the same files and a balancer in front, both ready."""
    gateways: list[GatewayProcess] = []
    try:
        for starting in asyncio.as_completed(
            [start_gateway(place, entries, settings, free_port(), name) for name in "ab"]
        ):
            gateways.append(await starting)
        for gateway in gateways:
            await ready(gateway.port)
        async with balanced(*(gateway.port for gateway in gateways)) as balancer:
            yield balancer, gateways
    finally:
        for gateway in gateways:
            gateway.process.kill()
            gateway.process.wait()


async def ask(port: int, method: str, params: Json, key: str | None = None, token: list[int] | None = None) -> Json:
    """The response to one request on a connection of its own, whose end here is added to `token`; with its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if token is not None:
        token.append(writer.get_extra_info("sockname")[1])
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = f"POST /rcp HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    try:
        async with asyncio.timeout(START_SECONDS):
            top, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return {**json.loads(answer), "status": int(top.split(b" ")[1])}


async def ready(port: int) -> None:
    """Wait until the gateway says that it is ready."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
            status = (await reader.read())[9:12]
            writer.close()
            if status == b"200":
                return
            await asyncio.sleep(0.02)


async def pages(port: int, key: str | None = None, **params: Any) -> list[Json]:
    """All pages of a question."""
    answers: list[Json] = []
    while not answers or "nextCursor" in answers[-1]:
        answers.append((await ask(port, "retrieve", {"query": "q", **params}, key))["result"])
        params["cursor"] = answers[-1].get("nextCursor")
    return answers


async def test_two_replicas_are_one(engines: Any, redis_url: str, tmp_path: Path) -> None:
    """Round robin, a connection for each request: pages and sessions go on wherever they come, streams stream, and a
    tenant's requests are counted together."""
    engine = await serving(engines, *range(60))
    tenants = tmp_path / "tenants.yaml"
    declared = {"red": tenant("*", keys=(RED,)), "blue": tenant(keys=(BLUE,), limits={"rps": 0.001, "burst": 6})}
    tenants.write_text(json.dumps({"tenants": declared}), encoding="utf-8")
    settings = {"state": shared(redis_url), "auth": {"mode": ["keys"], "tenants_file": str(tenants)}}
    async with replicas(tmp_path, [entry("e", engine)], settings) as (balancer, gateways):
        port = balancer.port
        found = await pages(port, RED)
        assert ids(*found) == list(range(60))
        assert [len(page["hits"]) for page in found] == [10] * 6
        session = {"query": "q", "sessionId": "s"}
        answers = [(await ask(port, "retrieve", session, RED))["result"] for _ in range(4)]
        assert ids(*answers) == list(range(40))
        for _ in gateways:
            async with asking(port, question(), authorization=f"Bearer {RED}") as caller:
                await caller.head()
                frames = []
                while (message := await caller.message()) is not None:
                    frames.append(message)
            assert len(frames) >= 2
            assert len(frames[-1]["result"]["hits"]) == 10
        counted = [await ask(port, "ping", {}, BLUE) for _ in range(8)]
        assert [answer["status"] for answer in counted] == [200] * 6 + [429] * 2
        assert counted[-1]["error"]["code"] == -32011
        went = list(balancer.routes.values())
    assert {went.count(gateway.port) for gateway in gateways} == {len(went) // 2}


async def test_killing_one_loses_what_it_had_under_way_and_nothing_else(
    engines: Any, redis_url: str, tmp_path: Path
) -> None:
    """With callers that ask all the time one gateway is killed: only requests that were sent to it are lost, and none
    that was asked after it was gone; cursors that it gave lead on at the other."""
    engine = await engines()
    answer = corpus(*range(60))

    async def slow(asked: Asked) -> Any:
        await asyncio.sleep(0.02)
        return await answer(asked)

    engine.answers["retrieve"] = slow
    async with replicas(tmp_path, [entry("e", engine)], {"state": shared(redis_url)}) as (balancer, gateways):
        doomed = gateways[0]
        first = (await ask(doomed.port, "retrieve", {"query": "q", "sessionId": "s"}))["result"]
        lost: list[int] = []
        answered = [0, 0]
        killed = asyncio.Event()
        done = asyncio.Event()

        async def call() -> None:
            while not done.is_set():
                ends: list[int] = []
                gone = killed.is_set()
                try:
                    response = await ask(balancer.port, "retrieve", {"query": "q"}, token=ends)
                    assert len(response["result"]["hits"]) == 10
                    answered[killed.is_set()] += 1
                except (OSError, EOFError, ValueError, IndexError):
                    assert not gone
                    lost.extend(ends)

        callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
        await until_answered(answered, 0, 3 * CALLERS)
        doomed.process.kill()
        await asyncio.to_thread(doomed.process.wait)
        killed.set()
        await until_answered(answered, 1, 3 * CALLERS)
        done.set()
        await asyncio.gather(*callers)
        assert {balancer.routes[end] for end in lost} <= {doomed.port}
        params = {"query": "q", "sessionId": "s", "cursor": first["nextCursor"]}
        second = (await ask(balancer.port, "retrieve", params))["result"]
        assert ids(first, second) == list(range(20))


async def until_answered(answered: list[int], place: int, count: int) -> None:
    """Wait until so many were answered."""
    async with asyncio.timeout(START_SECONDS):
        while answered[place] < count:
            await asyncio.sleep(0.01)


async def test_workers_share_the_state(engines: Any, redis_url: str, tmp_path: Path) -> None:
    """Two workers behind one address serve each other's pages, sessions and handshakes."""
    engine = await serving(engines, *range(60))
    settings = {"server": {"workers": 2, "handshake": "required", "drain_seconds": 0}, "state": shared(redis_url)}
    gateway = await start_gateway(tmp_path, [entry("e", engine)], settings)
    try:
        await ready(gateway.port)
        assert "result" in await ask(gateway.port, "initialize", {"protocolVersion": 1})
        # The kernel spreads connections over the workers; thirty that all went to one would be a rare day.
        for turn in range(5):
            found = await pages(gateway.port, sessionId=f"s{turn}")
            assert ids(*found) == list(range(60))
    finally:
        assert await gateway.end() == 0


async def test_a_gateway_without_its_redis_serves_and_reveals_no_secret(engines: Any, tmp_path: Path) -> None:
    """A process whose Redis is not there starts, answers, says that it goes on alone, and logs no password."""
    engine = await serving(engines, *range(30))
    gateway = await start_gateway(tmp_path, [entry("e", engine)], {"state": {"url": "redis://:SECRET@127.0.0.1:1/0"}})
    try:
        await ready(gateway.port)
        answer = (await ask(gateway.port, "retrieve", {"query": "q"}))["result"]
        assert any("shared state is unavailable" in note for note in answer["usage"]["notes"])
        assert gateway.logged("state_degraded")
        assert not gateway.logged("SECRET")
    finally:
        gateway.process.kill()
        gateway.process.wait()
