"""A gateway of gateways: engines that another gateway lists join directly, where the registry allows their host."""

import asyncio
from typing import Any

import pytest

from app.engines import transport_factory
from app.engines.http.resolver import GuardedResolver
from tests.gateway.conftest import Starter
from tests.support.log_lines import own_log
from tests.support.mounted_gateway import mounted
from tests.support.ports import free_port
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import DEFAULT_CAPABILITIES, RpcFault, ScriptedEngine, hits

QUICK: Json = {"engines": {"health_interval_seconds": 0.05, "reconnect_max_seconds": 0.05}}


def asked_of(result: Json) -> dict[str, str]:
    """Engine -> its status or the reason of its skip, from the report of a result."""
    return {engine["id"]: engine.get("reason", engine["status"]) for engine in result["_meta"]["x-gateway"]["engines"]}


async def joined(gateway: RunningGateway, *names: str) -> None:
    """Wait until requests go to exactly these engines."""
    await until(lambda: {engine.id for engine in gateway.state.membership.current().engines} == set(names))


class Aggregator:
    """A scripted aggregator: `listed` are its pages, each a list of entries."""

    def __init__(self, engine: ScriptedEngine, *, ours: bool = True) -> None:
        self.engine = engine
        self.pages: list[list[Any]] = [[]]
        self.cursors: list[str | None] = [None]
        capabilities = {**DEFAULT_CAPABILITIES, "catalog": {"engines": 1}}
        described: Json = {
            "protocolVersion": 1,
            "server": {"name": "agg", "version": "1"},
            "capabilities": capabilities,
        }
        if ours:
            described["_meta"] = {"x-gateway": {"id": "them"}}
        engine.answers |= {"initialize": described, "info": described, "catalog/list": self._catalog}

    async def _catalog(self, asked: Any) -> Json:
        cursor = asked.params.get("cursor")
        place = 0 if cursor is None else self.cursors.index(cursor) + 1
        page: Json = {"engines": self.pages[place]}
        if self.cursors[place] is not None:
            page["nextCursor"] = self.cursors[place]
        return page


def listed(engine_id: str, url: str | None = None, **more: Any) -> Json:
    """One entry of a listing."""
    made: Json = {"id": engine_id, "server": {"name": engine_id, "version": "1"}, "capabilities": {}, **more}
    return made if url is None else {**made, "endpoint": {"transport": "http", "url": url}}


async def test_a_gateways_engines_are_asked_directly(engines: Starter) -> None:
    """They join as `parent/child` and are asked at their endpoints; the parent itself is not: nobody counts twice."""
    docs, code = await engines(results=hits("a")), await engines(results=hits("b"))
    async with mounted([entry("docs", docs), entry("code", code)], {"server": {"id": "inner"}}) as inner:
        entries = [entry("in", f"{inner.url}/rcp", discover=True, weight=2.5, priority=3)]
        async with running(entries, QUICK) as outer:
            await joined(outer, "in/docs", "in/code")
            result = await outer.retrieve()
            assert asked_of(result) == {"in/docs": "ok", "in/code": "ok"}
            assert {hit["id"]: hit["meta"]["engine"] for hit in result["hits"]} == {"a": "in/docs", "b": "in/code"}
            assert [request.params["_meta"]["federation"]["path"][1:] for request in docs.requests()] == [["inner"]]
            child = outer.state.engines.engines[1].entry
            assert (child.weight, child.priority, child.discover) == (2.5, 3, False)
            listing = (await outer.result("catalog/list"))["engines"]
            assert [(each["id"], each["x-gateway"]) for each in listing] == [
                ("in/code", {"discovered": True}),
                ("in/docs", {"discovered": True}),
            ]
            assert (await outer.result("info", base="/engines/in/docs/rcp"))["server"]["name"] == "scripted"
            operators = (await outer.client.get("/engines")).json()["engines"]
            assert [each["id"] for each in operators] == ["in", "in/code", "in/docs"]
            assert await outer.metric("rcp_gateway_legs_total", engine="in/docs", outcome="ok") == 1
            assert len(docs.requests()) == len(code.requests()) == 1


async def test_the_name_of_a_gateway_stands_for_its_engines(engines: Starter) -> None:
    """A request that names the gateway, to ask it or to weigh it, means its engines."""
    docs, own = await engines(results=hits("a")), await engines(results=hits("b"))
    async with (
        mounted([entry("docs", docs)], {"server": {"id": "inner"}}) as inner,
        running([entry("in", f"{inner.url}/rcp", discover=True), entry("own", own)], QUICK) as outer,
    ):
        await joined(outer, "in/docs", "own")
        named = await outer.retrieve(**{"x-gateway": {"engines": ["in"]}})
        assert asked_of(named) == {"in/docs": "ok", "own": "not_selected"}
        weighed = await outer.retrieve(fusion={"method": "rrf", "weights": {"in": 4, "own": 1}})
        weights = {engine["id"]: engine["weight"] for engine in weighed["_meta"]["x-gateway"]["engines"]}
        assert weights == {"in/docs": 4, "own": 1}
        assert (await outer.error("retrieve", {"query": "q", "x-gateway": {"engines": ["inn"]}}))["code"] == -32602


async def test_engines_without_an_endpoint_stay_behind_their_gateway(engines: Starter) -> None:
    """The gateway is asked for those only, with its own restriction, so that nothing is asked twice."""
    direct, aggregator = await engines(results=hits("a")), await engines(results=hits("b"))
    them = Aggregator(aggregator)
    them.pages = [[listed("x", direct.url), listed("y"), listed("z", endpoint={"transport": "stdio"})]]
    async with running([entry("in", aggregator, discover=True)], QUICK) as gateway:
        await joined(gateway, "in", "in/x")
        result = await gateway.retrieve()
        assert asked_of(result) == {"in": "ok", "in/x": "ok"}
        assert aggregator.requests()[-1].params["x-gateway"] == {"engines": ["y", "z"]}
        assert "x-gateway" not in direct.requests()[-1].params
        whole = await gateway.result("retrieve", {"query": "q"}, base="/engines/in/rcp")
        assert whole["hits"]
        assert "x-gateway" not in aggregator.requests()[-1].params


async def test_an_aggregator_of_another_kind_joins_whole_or_not_at_all(engines: Starter) -> None:
    """It cannot be told to leave engines out: either all of its engines join, or it is asked as before."""
    direct, aggregator = await engines(), await engines()
    them = Aggregator(aggregator, ours=False)
    them.pages = [[listed("x", direct.url), listed("y")]]
    async with running([entry("in", aggregator, discover=True)], QUICK) as gateway:
        await until(lambda: len(aggregator.requests("catalog/list")) > 2)
        assert asked_of(await gateway.retrieve()) == {"in": "ok"}
        them.pages = [[listed("x", direct.url)]]
        await joined(gateway, "in/x")
        them.pages = [[listed("x", direct.url), listed("y")]]
        await joined(gateway, "in")


@pytest.mark.parametrize(
    ("url", "hosts", "joins"),
    [
        ("http://127.0.0.1:{port}/rcp", [], True),
        ("http://localhost:{port}/rcp", [], False),
        ("http://localhost:{port}/rcp", ["LOCALHOST"], True),
        ("http://localhost:{port}/rcp", ["localhost:{port}"], True),
        ("http://localhost:{port}/rcp", ["localhost:1"], False),
        ("http://2130706433:{port}/rcp", [], False),
        ("http://0x7f.1:{port}/rcp", [], False),
        ("http://127.0.0.1.nip.io:{port}/rcp", [], False),
        ("http://[::ffff:127.0.0.1]:{port}/rcp", [], False),
        ("http://169.254.169.254/rcp", [], False),
        ("http://user:pass@127.0.0.1:{port}/rcp", [], False),
        ("ftp://127.0.0.1/rcp", [], False),
        ("not a url", [], False),
        ("", [], False),
    ],
)
async def test_only_allowed_hosts_are_followed(engines: Starter, url: str, hosts: list[str], joins: bool) -> None:
    """The gateway's own host and those of `discoverHosts`, written as they are; anything else stays behind it (B94)."""
    direct, aggregator = await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("x", url.format(port=direct.port))]]
    allowed = [host.format(port=direct.port) for host in hosts]
    async with running([entry("in", aggregator, discover=True, discoverHosts=allowed)], QUICK) as gateway:
        if joins:
            await joined(gateway, "in/x")
        else:
            await until(lambda: len(aggregator.requests("catalog/list")) > 1)
            assert [engine.id for engine in gateway.state.engines.engines] == ["in"]
            assert asked_of(await gateway.retrieve()) == {"in": "ok"}
            assert direct.connections == 0


async def test_addresses_are_looked_at_when_connecting(engines: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowed name that leads to this machine or to a cloud's metadata is not connected to (B94)."""
    direct, aggregator = await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("x", f"http://engine.example:{direct.port}/rcp")]]
    found = ["169.254.169.254"]

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == "engine.example"
        return [(0, 0, 0, "", (address, 0)) for address in found]

    monkeypatch.setattr(transport_factory, "GuardedResolver", lambda: GuardedResolver(lookup=look_up, ttl=0.0))
    entries = [entry("in", aggregator, discover=True, discoverHosts=["engine.example"])]
    async with running(entries, QUICK, reach=False) as gateway:
        await until(lambda: len(gateway.state.engines.engines) == 2)
        child = gateway.state.engines.engines[1]
        for address in ("169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1", "::1", "fe80::1%1", "0.0.0.0", "224.0.0.1"):
            found[:] = [address]
            await until(lambda: "not one that a discovered engine may have" in (child.down_reason or ""))
        assert direct.connections == 0
        assert asked_of(await gateway.retrieve()) == {"in": "ok"}


async def test_credentials_go_home_only(engines: Starter) -> None:
    """The parent's headers are sent to its own scheme, host and port, and to no other engine it lists."""
    elsewhere, aggregator = await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("home", f"{aggregator.url}/home"), listed("away", elsewhere.url)]]
    headers = {"Authorization": "Bearer SECRET"}
    async with running([entry("in", aggregator, discover=True, headers=headers)], QUICK) as gateway:
        await joined(gateway, "in/home", "in/away")
        await gateway.retrieve()
    assert all("authorization" not in asked.headers for asked in elsewhere.asked)
    assert elsewhere.asked
    home = [asked for asked in aggregator.asked if asked.path.startswith("/rcp/home")]
    assert home
    assert all(asked.headers["authorization"] == "Bearer SECRET" for asked in home)


async def test_engines_come_and_go(engines: Starter) -> None:
    """The listing is read again: who is no longer in it leaves, with its metrics, and who is new joins."""
    one, two, aggregator = await engines(), await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("x", one.url)]]
    with own_log() as log:
        async with running([entry("in", aggregator, discover=True)], QUICK) as gateway:
            await joined(gateway, "in/x")
            await gateway.retrieve()
            them.pages = [[listed("y", two.url), listed("bad", "http://elsewhere.example/rcp")]]
            await joined(gateway, "in", "in/y")
            assert "in/x" not in [engine.id for engine in gateway.state.engines.engines]
            sample = gateway.state.metrics.registry.get_sample_value
            assert sample("rcp_gateway_legs_total", {"engine": "in/x", "outcome": "ok"}) is None
            assert sample("rcp_gateway_legs_total", {"engine": "in/y", "outcome": "ok"}) == 0
            them.pages = [[listed("y", one.url)]]
            await until(lambda: any(e.id == "in/y" and e.entry.url == one.url for e in gateway.state.engines.engines))
            await joined(gateway, "in/y")
            aggregator.answers["catalog/list"] = RpcFault(-32603)
            seen = len(aggregator.requests("catalog/list"))
            await until(lambda: len(aggregator.requests("catalog/list")) > seen + 2)
            assert asked_of(await gateway.retrieve()) == {"in/y": "ok"}
    events = ("engine_joined", "engine_left")
    moves = [(line["event"], line["engine"]) for line in log.lines if line["event"] in events]
    assert moves == [
        ("engine_joined", "in/x"),
        ("engine_left", "in/x"),
        ("engine_joined", "in/y"),
    ]
    (refused,) = [line for line in log.lines if line["event"] == "engine_not_joined"]
    assert (refused["engine"], refused["gateway"]) == ("bad", "in")
    assert "discoverHosts" in refused["reason"]


async def test_calls_of_an_engine_that_leaves_may_end(engines: Starter) -> None:
    """A call under way when its engine leaves the listing is answered."""
    one, aggregator, release = await engines(), await engines(), asyncio.Event()

    async def held(asked: Any) -> Json:
        await release.wait()
        return {"hits": hits("a")}

    one.answers["retrieve"] = held
    them = Aggregator(aggregator)
    them.pages = [[listed("x", one.url)]]
    async with running([entry("in", aggregator, discover=True, timeoutMs=20_000)], QUICK) as gateway:
        await joined(gateway, "in/x")
        asking = asyncio.create_task(gateway.retrieve())
        await until(lambda: bool(one.requests()))
        them.pages = [[]]
        await joined(gateway, "in")
        release.set()
        assert asked_of(await asking) == {"in/x": "ok"}


async def test_a_listing_in_pages(engines: Starter) -> None:
    """Every page is read; a cursor that comes again ends it."""
    one, aggregator = await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("a", one.url)], [listed("b", one.url)], [listed("c", one.url), listed("a", "http://x/")]]
    them.cursors = ["1", "2", "1"]
    async with running([entry("in", aggregator, discover=True)], QUICK) as gateway:
        await joined(gateway, "in/a", "in/b", "in/c")
        first = [asked.params.get("cursor") for asked in aggregator.requests("catalog/list")[:3]]
        assert first == [None, "1", "2"]


@pytest.mark.parametrize("page", ["text", {"engines": "x"}, {}, {"engines": [7, None, {}, {"id": 7}, {"id": "x y"}]}])
async def test_a_listing_that_is_none(engines: Starter, page: Any) -> None:
    """A malformed listing lets nobody join, and the gateway is asked as before."""
    aggregator = await engines()
    Aggregator(aggregator)
    aggregator.answers["catalog/list"] = page
    async with running([entry("in", aggregator, discover=True)], QUICK) as gateway:
        await until(lambda: len(aggregator.requests("catalog/list")) > 1)
        assert [engine.id for engine in gateway.state.engines.engines] == ["in"]
        assert asked_of(await gateway.retrieve()) == {"in": "ok"}


async def test_a_child_that_cannot_be_reached_stays_behind_its_gateway(engines: Starter) -> None:
    """Until it has been reached directly, an engine is asked through the gateway that lists it."""
    aggregator = await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("x", "http://127.0.0.1:9/rcp")]]
    async with running([entry("in", aggregator, discover=True)], QUICK, reach=False) as gateway:
        await until(lambda: len(gateway.state.engines.engines) == 2)
        assert asked_of(await gateway.retrieve()) == {"in": "ok"}
        assert "x-gateway" not in aggregator.requests()[-1].params


async def test_an_id_that_is_taken_is_not_given_again(engines: Starter) -> None:
    """An engine of the registry keeps its id; the one that is listed under it stays behind its gateway."""
    own, direct, aggregator = await engines(), await engines(), await engines()
    them = Aggregator(aggregator)
    them.pages = [[listed("x", direct.url), listed("y", direct.url)]]
    async with running([entry("in", aggregator, discover=True), entry("in/x", own)], QUICK) as gateway:
        await joined(gateway, "in", "in/x", "in/y")
        assert next(e for e in gateway.state.engines.engines if e.id == "in/x").entry.url == own.url
        await gateway.retrieve()
        assert aggregator.requests()[-1].params["x-gateway"] == {"engines": ["x"]}


async def test_gateways_that_discover_each_other_come_to_an_end(engines: Starter) -> None:
    """Each asks the other's own engine and no copy of a copy; nobody is asked twice for one question."""
    docs, code = await engines(results=hits("a")), await engines(results=hits("b"))
    port = free_port()
    left = [entry("docs", docs), entry("right", f"http://127.0.0.1:{port}/rcp", discover=True)]
    async with mounted(left, {**QUICK, "server": {"id": "left"}}, reach=False) as one:
        right = [entry("code", code), entry("left", f"{one.url}/rcp", discover=True)]
        async with mounted(right, {**QUICK, "server": {"id": "right"}}, port=port, reach=False) as two:
            await until(lambda: "right/code" in {e.id for e in one.state.membership.current().engines})
            await until(lambda: "left/docs" in {e.id for e in two.state.membership.current().engines})
            assert len((await one.result("catalog/list"))["engines"]) < 6
            before = len(docs.requests()), len(code.requests())
            result = await one.retrieve()
            assert {hit["id"] for hit in result["hits"]} == {"a", "b"}
            assert (len(docs.requests()) - before[0], len(code.requests()) - before[1]) == (1, 1)


async def test_nobody_is_discovered_unasked(engines: Starter) -> None:
    """Without `discover` the listing is not even read."""
    aggregator = await engines()
    Aggregator(aggregator).pages = [[listed("x", aggregator.url)]]
    async with running([entry("in", aggregator)], QUICK) as gateway:
        await until(lambda: len(aggregator.requests("info")) > 2)
        assert asked_of(await gateway.retrieve()) == {"in": "ok"}
    assert aggregator.requests("catalog/list") == []
