"""A session keeps the engines and capabilities that it began with (RCP §13.2): HTTP, stdio and shared state."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.api.gateway_state import GatewayState
from tests.gateway.conftest import Starter
from tests.support.piped_gateway import HELLO, piped
from tests.support.running_gateway import PATIENCE, Json, RunningGateway, entry, running
from tests.support.scripted_engine import RpcFault, hits
from tests.support.shared_state import unique

DENSE: Json = {"retrieve": {"maxK": 50, "modes": ["dense"]}}
SPARSE: Json = {"retrieve": {"maxK": 50, "modes": ["sparse"]}, "filter": {"fields": {"year": "int"}}}
RERANKS: Json = {"rerank": {"methods": ["llm"]}}
SPARSELY: Json = {"query": "q", "mode": "sparse"}
FILTERED: Json = {"query": "q", "filter": {"field": "year", "op": "eq", "value": 1}}
RERANK: Json = {"query": "q", "passages": ["p"]}

Ask = Callable[[str, Json], Awaitable[Json]]
"""(method, params) -> the whole answer, within one session."""


@asynccontextmanager
async def over_http(entries: list[Json], off: tuple[str, ...]) -> AsyncIterator[tuple[GatewayState, Ask]]:
    async with running(entries, {"server": {"handshake": "required"}}) as gateway:
        for engine in off:
            gateway.state.engines.switch(engine, False)
        token = (await gateway.result("initialize", HELLO))["_meta"]["session"]

        async def ask(method: str, params: Json) -> Json:
            return await gateway.call(method, params, headers={"RCP-Session": token})

        yield gateway.state, ask


@asynccontextmanager
async def over_an_address(entries: list[Json], off: tuple[str, ...]) -> AsyncIterator[tuple[GatewayState, Ask]]:
    """As the published SDKs' clients are, which send no header."""
    async with running(entries, {"server": {"handshake": "required"}}) as gateway:
        for engine in off:
            gateway.state.engines.switch(engine, False)
        await gateway.result("initialize", HELLO)
        yield gateway.state, gateway.call


@asynccontextmanager
async def over_stdio(entries: list[Json], off: tuple[str, ...]) -> AsyncIterator[tuple[GatewayState, Ask]]:
    async with piped(entries, hello=False) as gateway:
        for engine in off:
            gateway.state.engines.switch(engine, False)
        await gateway.hello()
        yield gateway.state, gateway.call


TRANSPORTS = [over_http, over_an_address, over_stdio]


def code(answer: Json) -> int | None:
    return answer["error"]["code"] if "error" in answer else None


async def registry(engines: Starter) -> list[Json]:
    """Three engines, each of which can do something that no other can."""
    dense = await engines(capabilities=DENSE, results=hits("d"))
    sparse = await engines(capabilities=SPARSE, results=hits("s"))
    judge = await engines(capabilities=RERANKS)
    judge.answers["rerank"] = {"scores": [1.0]}
    return [entry("dense", dense), entry("sparse", sparse), entry("judge", judge)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_an_engine_took_away_fails_and_stays_advertised(engines: Starter, transport: Any) -> None:
    """-32010 for a method, an option and a filter field; what others do goes on, and names who is missing."""
    async with transport(await registry(engines), ()) as (state, ask):
        told = (await ask("info", {}))["result"]["capabilities"]
        for method, params in (("retrieve", SPARSELY), ("retrieve", FILTERED), ("rerank", RERANK)):
            assert code(await ask(method, params)) is None
        state.engines.switch("sparse", False)
        state.engines.switch("judge", False)
        for method, params in (("retrieve", SPARSELY), ("retrieve", FILTERED), ("rerank", RERANK)):
            answer = await ask(method, params)
            assert code(answer) == -32010, answer
        assert (await ask("info", {}))["result"]["capabilities"] == told
        rest = (await ask("retrieve", {"query": "q"}))["result"]
        assert [hit["id"] for hit in rest["hits"]] == ["d"]
        assert rest["_meta"]["degraded"] == ["sparse"]
        assert code(await ask("retrieve", {"query": "q", "mode": "hybrid"})) == -32005  # nobody ever could
        state.engines.switch("judge", True)
        assert code(await ask("rerank", RERANK)) is None


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_joined_later_is_not_part_of_the_session(engines: Starter, transport: Any) -> None:
    """Neither its methods nor its options, nor its hits; the next session has them."""
    async with transport(await registry(engines), ("sparse", "judge")) as (state, ask):
        told = (await ask("info", {}))["result"]["capabilities"]
        state.engines.switch("sparse", True)
        state.engines.switch("judge", True)
        assert (await ask("info", {}))["result"]["capabilities"] == told
        assert code(await ask("rerank", RERANK)) == -32003
        assert code(await ask("retrieve", SPARSELY)) == -32005
        assert code(await ask("retrieve", FILTERED)) == -32602
        plain = (await ask("retrieve", {"query": "q"}))["result"]
        assert [hit["id"] for hit in plain["hits"]] == ["d"]


async def test_an_engine_that_offers_less_than_it_did(engines: Starter) -> None:
    """It says -32003 or -32005 itself: within the session the call has failed."""
    engine = await engines(capabilities={**DENSE, **RERANKS})
    async with over_http([entry("e", engine)], ()) as (state, ask):
        engine.capabilities = DENSE
        engine.answers["rerank"] = RpcFault(-32003, "no more")
        await state.engines.engines[0].handshake(asyncio.get_running_loop().time() + PATIENCE)
        assert code(await ask("rerank", RERANK)) == -32010


async def test_a_second_client_at_the_address_takes_nothing_from_the_first(engines: Starter) -> None:
    """Both have the session of the address: the first keeps what it was promised, and neither is refused."""
    async with over_an_address(await registry(engines), ()) as (state, ask):
        state.engines.switch("judge", False)
        second = (await ask("initialize", HELLO))["result"]["capabilities"]
        assert "rerank" not in second
        assert code(await ask("rerank", RERANK)) == -32010


async def test_a_session_that_began_with_nothing(engines: Starter) -> None:
    """It cannot get anything later, and is told to begin again."""
    async with over_http(await registry(engines), ("dense", "sparse", "judge")) as (state, ask):
        for engine in ("dense", "sparse", "judge"):
            state.engines.switch(engine, True)
        for method, params in (("retrieve", SPARSELY), ("rerank", RERANK)):
            answer = await ask(method, params)
            assert code(answer) == -32010
            assert "start a new session" in answer["error"]["message"]


async def test_sessions_are_the_same_for_every_gateway_that_shares_them(engines: Starter, redis_url: str) -> None:
    """Also after the registry has changed, and for a gateway that never saw the engine that left."""
    entries = await registry(engines)
    settings = {
        "server": {"handshake": "required"},
        "state": {"url": redis_url, "prefix": unique(), "timeout_ms": 10_000},
    }
    async with running(entries, settings, fingerprint="1" * 8) as one:
        headers = {"RCP-Session": (await one.result("initialize", HELLO))["_meta"]["session"]}
        told = (await one.result("info", headers=headers))["capabilities"]
        async with running(entries[:1], settings, fingerprint="2" * 8) as two:
            await _keeps(two, headers, told)


async def _keeps(gateway: RunningGateway, headers: Json, told: Json) -> None:
    assert (await gateway.result("info", headers=headers))["capabilities"] == told
    for method, params in (("retrieve", SPARSELY), ("rerank", RERANK)):
        assert (await gateway.error(method, params, headers=headers))["code"] == -32010
    assert (await gateway.result("retrieve", {"query": "q"}, headers=headers))["_meta"]["degraded"] == ["sparse"]


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ({}, 0),
        ({"capabilities": {"log": {}}}, 1),
        ({"capabilities": {"log": {}}, "_meta": {"logLevel": "debug"}}, 2),
        ({"capabilities": {"log": {}}, "_meta": {"logLevel": "error"}}, 0),
        ({"capabilities": {"log": None}}, 0),
        ({"_meta": {"logLevel": "nonsense"}}, 0),
    ],
)
async def test_a_caller_opts_into_the_log_once_for_its_session(engines: Starter, said: Json, lines: int) -> None:
    """`capabilities.log` of `initialize`, and its `_meta.logLevel` (RCP §17.1); a request may say otherwise."""
    broken = await engines()
    broken.answers["retrieve"] = RpcFault(-32010, "down")
    async with piped([entry("well", await engines()), entry("broken", broken)], hello=False) as gateway:
        await gateway.call("initialize", {**HELLO, **said})
        gateway.ask("retrieve", {"query": "q"})
        for _ in range(lines):
            assert (await gateway.message())["method"] == "notifications/log"
        assert "result" in await gateway.message()
        assert "result" in await gateway.call("retrieve", {"query": "q", "_meta": {"logLevel": "error"}})
