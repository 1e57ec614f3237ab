"""What a tenant may ask: requests by the second, at once and by the day; by address where nobody says who he is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.corpora import serving
from tests.support.log_lines import own_log
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import hit
from tests.support.tenancy import asked, bearer, result, tenant

RED, BLUE, OTHER = "red-key-0123456789", "blue-key-0123456789", "other-key-0123456789"


@asynccontextmanager
async def limited(entries: list[Json], settings: Json | None = None, **more: Any) -> AsyncIterator[RunningGateway]:
    """A gateway for which no time passes as far as limits go, so that no window ends amid a test."""
    async with running(entries, settings, **more) as gateway:
        assert gateway.state.authenticator is not None
        gateway.state.authenticator._quotas._clock = lambda: 1_000_000.0
        yield gateway


def ping(count: int) -> list[Json]:
    """A batch of pings."""
    return [{"jsonrpc": "2.0", "id": number, "method": "ping", "params": {}} for number in range(count)]


async def statuses(gateway: RunningGateway, count: int, headers: Json) -> list[int]:
    """The HTTP statuses of so many pings."""
    return [(await gateway.post(ping(1)[0], headers=headers)).status_code for _ in range(count)]


async def test_requests_by_the_second() -> None:
    """Beyond its burst a tenant is answered 429 with -32011, Retry-After and retryAfterMs, the id echoed."""
    tenants = {"red": tenant(keys=(RED,), limits={"rps": 0.01, "burst": 3}), "blue": tenant(keys=(BLUE,))}
    async with limited([], reach=False, tenants=tenants) as gateway:
        assert await statuses(gateway, 3, bearer(RED)) == [200] * 3
        refused = await asked(gateway, RED, "ping")
        assert await statuses(gateway, 9, bearer(BLUE)) == [200] * 9
        counted = await gateway.metric("rcp_gateway_refusals_total", tenant="red", reason="requests")
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (refused.json()["id"], error["code"], error["data"]["retryable"]) == (7, -32011, True)
    assert 0 < error["data"]["retryAfterMs"] <= 300_000
    assert int(refused.headers["retry-after"]) == -(-error["data"]["retryAfterMs"] // 1000)
    assert counted == 1


async def test_keys_of_one_tenant_count_together() -> None:
    """A second key is no second budget."""
    tenants = {"red": tenant(keys=(RED, OTHER), limits={"rps": 0.01, "burst": 2})}
    async with limited([], reach=False, tenants=tenants) as gateway:
        assert await statuses(gateway, 1, bearer(RED)) == [200]
        assert await statuses(gateway, 2, bearer(OTHER)) == [200, 429]


async def test_members_of_a_batch_count_each() -> None:
    """A batch takes as much as its members one by one; one that could never pass is told so."""
    tenants = {"red": tenant(keys=(RED,), limits={"rps": 0.01, "burst": 5})}
    async with limited([], reach=False, tenants=tenants) as gateway:
        never = await gateway.post(ping(6), headers=bearer(RED))
        first = await gateway.post(ping(4), headers=bearer(RED))
        second = await gateway.post(ping(2), headers=bearer(RED))
        third = await gateway.post(ping(1), headers=bearer(RED))
    assert never.json()["error"]["data"]["field"] == "batch"
    assert never.json()["error"]["code"] == -32602
    assert len(first.json()) == 4
    assert (second.status_code, second.json()["id"]) == (429, None)
    assert third.status_code == 200


async def test_requests_at_once(engines: Any) -> None:
    """No more than `concurrent` are under way; the next is refused, and let in once one has ended."""
    engine = await engines()
    gate = asyncio.Event()

    async def wait(asked: Any) -> Json:
        await gate.wait()
        return {"hits": [hit("a")]}

    engine.answers["retrieve"] = wait
    tenants = {"red": tenant("*", keys=(RED,), limits={"concurrent": 2})}
    async with limited([entry("e", engine)], tenants=tenants) as gateway:
        two = [asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"})) for _ in range(2)]
        await until(lambda: len(engine.requests()) == 2)
        refused = await asked(gateway, RED, "retrieve", {"query": "q"})
        gate.set()
        await asyncio.gather(*two)
        assert await result(gateway, RED, "retrieve", {"query": "q"})
        assert repr(gateway.state.authenticator).endswith("0 in flight>")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert len(engine.requests()) == 3


async def test_a_cancelled_request_gives_its_place_back(engines: Any) -> None:
    """Hanging up frees the place."""
    engine = await engines()
    never = asyncio.Event()

    async def wait(asked: Any) -> Json:
        await never.wait()
        return {}

    engine.answers["retrieve"] = wait
    tenants = {"red": tenant("*", keys=(RED,), limits={"concurrent": 1})}
    async with limited([entry("e", engine)], tenants=tenants) as gateway:
        request = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}))
        await until(lambda: bool(engine.requests()))
        request.cancel()
        await asyncio.wait([request])
        assert await statuses(gateway, 1, bearer(RED)) == [200]


async def test_hits_of_a_day(engines: Any) -> None:
    """No more than a day's hits are answered; an answer that may hold too many is refused, and once all are answered
    everything is, until the day is over."""
    engine = await serving(engines, *range(30))
    tenants = {"red": tenant("*", keys=(RED,), limits={"hits_per_day": 15})}
    async with limited([entry("e", engine)], tenants=tenants) as gateway:
        assert len((await result(gateway, RED, "retrieve", {"query": "q"}))["hits"]) == 10
        many = (await asked(gateway, RED, "retrieve", {"query": "q"})).json()
        assert len((await result(gateway, RED, "retrieve", {"query": "q", "k": 5}))["hits"]) == 5
        refused = await asked(gateway, RED, "retrieve", {"query": "q"})
    assert many["error"]["code"] == -32011
    assert 86_000_000 < many["error"]["data"]["retryAfterMs"] <= 86_400_000
    assert refused.status_code == 429
    assert refused.json()["error"]["message"] == "this caller has used up its hits of the day"
    assert 86_000_000 < refused.json()["error"]["data"]["retryAfterMs"] <= 86_400_000
    assert len(engine.requests()) == 2


async def test_requests_in_flight_together_stay_within_the_day(engines: Any) -> None:
    """A hundred at once are answered a day's hits and no more; what was not served is given back."""
    engine = await engines()
    gate = asyncio.Event()

    async def wait(asked: Any) -> Json:
        await gate.wait()
        return {"hits": [hit(str(number)) for number in range(10 if asked.params["query"] == "full" else 0)]}

    engine.answers["retrieve"] = wait
    tenants = {"red": tenant("*", keys=(RED,), limits={"hits_per_day": 200})}
    async with limited([entry("e", engine)], tenants=tenants) as gateway:

        async def output_limit(query: str) -> list[Json]:
            gate.clear()
            asking = [asyncio.create_task(asked(gateway, RED, "retrieve", {"query": query})) for _ in range(100)]
            await until(lambda: sum(task.done() for task in asking) == 80)
            gate.set()
            return [answer.json() for answer in await asyncio.gather(*asking)]

        assert not any(answer.get("result", {}).get("hits") for answer in await output_limit("empty"))
        answers = await output_limit("full")
        assert sum(len(answer["result"]["hits"]) for answer in answers if "result" in answer) == 200
        assert {answer["error"]["code"] for answer in answers if "error" in answer} == {-32011}
        assert {answer["error"]["data"]["retryAfterMs"] for answer in answers if "error" in answer} == {1000}


PROXY = {"server": {"trusted_proxies": ["10.0.0.0/8"]}}
ANONYMOUS = {"anonymous": tenant(limits={"rps": 0.01, "burst": 3})}


async def test_forged_addresses_are_no_new_callers() -> None:
    """Behind a trusted proxy the right-most address counts: rotating what stands left of it does not help."""
    async with limited([], PROXY, reach=False, tenants=ANONYMOUS, client=("10.1.2.3", 1)) as gateway:
        rotating = [
            (await statuses(gateway, 1, {"x-forwarded-for": f"9.9.9.{number}, 1.2.3.4"}))[0] for number in range(6)
        ]
        another = await statuses(gateway, 3, {"x-forwarded-for": "5.6.7.8"})
    assert rotating == [200] * 3 + [429] * 3
    assert another == [200] * 3


async def test_a_direct_callers_header_is_ignored() -> None:
    """Who is no trusted proxy has one address, whatever it says."""
    async with limited([], PROXY, reach=False, tenants=ANONYMOUS, client=("192.0.2.1", 1)) as gateway:
        told = [(await statuses(gateway, 1, {"x-forwarded-for": f"1.2.3.{number}"}))[0] for number in range(5)]
    assert told == [200] * 3 + [429] * 2


async def test_a_key_counts_before_the_address() -> None:
    """With a key its tenant is counted, however many addresses it comes from."""
    tenants = {"red": tenant(keys=(RED,), limits={"rps": 0.01, "burst": 2})}
    async with limited([], PROXY, reach=False, tenants=tenants, client=("10.1.2.3", 1)) as gateway:
        told = [
            (await statuses(gateway, 1, {**bearer(RED), "x-forwarded-for": f"1.2.3.{number}"}))[0]
            for number in range(4)
        ]
    assert told == [200, 200, 429, 429]


async def test_repeated_wrong_credentials_become_cheap() -> None:
    """After so many failures an address is answered 429, without a line in the log; a right key is let in as ever."""
    settings = {"auth": {"mode": ["keys"], "tenants_file": "t", "max_failures": 5}}
    with own_log() as log:
        async with limited([], settings, reach=False, tenants={"red": tenant(keys=(RED,))}) as gateway:
            wrong = [await asked(gateway, f"wrong-{number}-0123456", "ping") for number in range(8)]
            right = await asked(gateway, RED, "ping")
            unknown = await gateway.metric("rcp_gateway_refusals_total", tenant="-", reason="unauthenticated")
    assert [answer.status_code for answer in wrong] == [401] * 5 + [429] * 3
    assert 0 < int(wrong[-1].headers["retry-after"]) <= 60
    assert wrong[-1].headers["connection"] == "close"
    assert wrong[-1].json()["error"]["code"] == -32011
    assert right.status_code == 200
    assert unknown == 8
    assert len([line for line in log.lines if line["event"] == "refused"]) == 5


@pytest.mark.parametrize("kind", ["address", "key"])
async def test_a_flood_makes_no_table_larger(kind: str) -> None:
    """Of many addresses and many wrong keys no more are remembered than `state.max_addresses`."""
    settings = {**PROXY, "state": {"max_addresses": 50}}
    async with limited([], settings, reach=False, tenants=ANONYMOUS, client=("10.0.0.1", 1)) as gateway:
        for number in range(300):
            headers = {"x-forwarded-for": f"1.1.{number // 250}.{number % 250}"}
            if kind == "key":
                headers |= bearer(f"wrong-{number}-0123456789")
            await gateway.post(ping(1)[0], headers=headers)
        authenticator = gateway.state.authenticator
        assert authenticator is not None
        assert len(authenticator._failed_auth) == (50 if kind == "key" else 0)
        limiter = authenticator._quotas._addresses
        assert limiter is None or "/200>" in repr(limiter)
        assert authenticator._quotas._under_way == authenticator._running == {}
