"""Errors that follow from the params are not held against the engine: one caller's query harms no other caller."""

import asyncio
from typing import Any

import pytest

from tests.support.running_gateway import PATIENCE, RunningGateway, entry, running
from tests.support.scripted_engine import Asked, Http, RpcFault, hits

INTERNAL = RpcFault(-32603, "internal error")


def poisoned_by(word: str, fault: Any) -> Any:
    """Answers with `fault` whatever has this word in its query."""

    async def answer(asked: Asked) -> Any:
        return fault if word in str(asked.params["query"]) else {"hits": hits("a", "b")}

    return answer


def told(result: dict[str, Any], engine: str = "e") -> dict[str, Any]:
    (report,) = [each for each in result["_meta"]["x-gateway"]["engines"] if each["id"] == engine]
    return report


async def state(gateway: RunningGateway, name: str, engine: str = "e") -> float:
    return await gateway.metric("rcp_gateway_breaker_state", engine=engine, state=name)


@pytest.mark.parametrize(
    "fault",
    [INTERNAL, RpcFault(-32700), RpcFault(-32602), RpcFault(-32005), RpcFault(-32013), Http(500), Http(500, b"oops")]
    + [Http(status, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"x"}}') for status in (400, 422, 500)]
    + [Http(500, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"x"}}'), Http(413), Http(422)],
)
@pytest.mark.parametrize("different", [True, False])
async def test_poison_of_one_caller_harms_no_other(engines: Any, fault: Any, different: bool) -> None:
    """However many poisonous queries come in a row, equal or different: plain queries are answered by all engines."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = poisoned_by("poison", fault)
    async with running([entry("e", sick), entry("well", well)]) as gateway:
        for number in range(40):
            result = await gateway.retrieve(f"poison {number if different else ''}")
            assert told(result)["status"] == "failed"
            if number % 8 == 7:
                assert told(await gateway.retrieve("plain"))["status"] == "ok"
        assert await state(gateway, "closed") == 1


async def test_a_thousand_poisonous_queries(engines: Any) -> None:
    """In batches at the same time as plain ones, none of which misses an engine."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = poisoned_by("poison", INTERNAL)
    async with running([entry("e", sick), entry("well", well)]) as gateway:
        for batch in range(40):
            poison = (gateway.retrieve(f"poison {batch} {number}") for number in range(25))
            plain = (gateway.retrieve(f"plain {batch} {number}") for number in range(2))
            *_, one, other = await asyncio.gather(*poison, *plain)
            for result in (one, other, await gateway.retrieve("plain")):
                assert told(result)["status"] == told(result, "well")["status"] == "ok"
        assert await gateway.metric("rcp_gateway_engine_up", engine="e") == 1


@pytest.mark.parametrize("fault", [INTERNAL, Http(500), RpcFault(-32700)])
@pytest.mark.parametrize("different", [True, False])
async def test_an_engine_that_fails_at_everything_is_left_alone(engines: Any, fault: Any, different: bool) -> None:
    """A plain call of the gateway's own fails too, so the breaker opens; it closes once the engine is well again."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = fault
    async with running([entry("e", sick, breaker={"openMs": 50}), entry("well", well)]) as gateway:
        async with asyncio.timeout(PATIENCE):
            number = 0
            while told(await gateway.retrieve(f"q{number if different else ''}")).get("reason") != "breaker_open":
                number += 1
            assert number < 10
            assert await gateway.metric("rcp_gateway_engine_up", engine="e") == 0
            sick.answers["retrieve"] = {"hits": hits("a")}
            while told(await gateway.retrieve("q"))["status"] != "ok":
                await asyncio.sleep(0.01)
        assert await state(gateway, "closed") == 1


async def test_poison_as_the_probe_of_an_open_breaker(engines: Any) -> None:
    """The engine is well again, and whoever comes first asks poison: the breaker closes all the same."""
    sick, well = await engines(), await engines()
    sick.answers["retrieve"] = Http(503)
    async with running([entry("e", sick, breaker={"openMs": 50}), entry("well", well)]) as gateway:
        async with asyncio.timeout(PATIENCE):
            while told(await gateway.retrieve()).get("reason") != "breaker_open":
                pass
            sick.answers["retrieve"] = poisoned_by("poison", INTERNAL)
            while await state(gateway, "closed") != 1:
                await gateway.retrieve("poison")
                await asyncio.sleep(0.01)
        assert told(await gateway.retrieve("plain"))["status"] == "ok"


async def test_known_poison_is_asked_once(engines: Any) -> None:
    """-32603 may be repeated once (RCP §12), over all replicas, and not at all by whoever asks the same again."""
    first, second = await engines(), await engines()
    for engine in (first, second):
        engine.answers["retrieve"] = poisoned_by("poison", INTERNAL)
    entries = [entry("e", first, replicas=[second.url], retries=5), entry("well", await engines())]
    async with running(entries) as gateway:
        attempts = [told(await gateway.retrieve("poison"))["attempts"] for _ in range(3)]
        other = told(await gateway.retrieve("another poison"))["attempts"]
    assert attempts == [2, 1, 1]
    assert other == 2


async def test_poison_ejects_no_replica(engines: Any) -> None:
    """Each replica that answers -32603 is as alive as the engine."""
    first, second = await engines(), await engines()
    for engine in (first, second):
        engine.answers["retrieve"] = poisoned_by("poison", INTERNAL)
    entries = [entry("e", first, replicas=[second.url]), entry("well", await engines())]
    async with running(entries) as gateway:
        for number in range(40):
            await gateway.retrieve(f"poison {number}")
        for replica in ("0", "1"):
            assert await gateway.metric("rcp_gateway_replica_up", engine="e", replica=replica) == 1


async def test_methods_without_a_control_call_never_count(engines: Any) -> None:
    """Nothing plain can be asked of a graph, so its errors say nothing of the engine."""
    engine = await engines(capabilities={"graph": {"ops": ["local"]}})
    engine.answers["graph"] = INTERNAL
    async with running([entry("e", engine)]) as gateway:
        for number in range(20):
            await gateway.error("graph", {"op": "local", "query": f"q{number}"})
        assert await state(gateway, "closed") == 1
