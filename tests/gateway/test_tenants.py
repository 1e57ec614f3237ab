"""Everything is seen through the tenant: what is not its own does not exist, in no answer, page, session or error."""

import asyncio
import json
from typing import Any

import pytest

from app.settings.tenants_file import tenants_in
from tests.support.corpora import ids, serving
from tests.support.listening_gateway import asking, listening, question
from tests.support.log_lines import own_log
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.scripted_engine import RpcFault, ScriptedEngine, hang, hit
from tests.support.tenancy import asked, bearer, digest, error, result, tenant

RED, BLUE, BOSS = "red-key-0123456789", "blue-key-0123456789", "boss-key-0123456789"

TENANTS: Json = {
    "red": tenant("red*", "shared", keys=(RED,)),
    "blue": tenant("blue", "shared", keys=(BLUE,)),
    "boss": tenant("*", keys=(BOSS,), roles=["read", "write", "feedback", "admin"]),
}


async def three(engines: Any) -> list[Json]:
    """An engine of red, one of blue, and one that both see."""
    red = await engines(name="red-server", capabilities={"retrieve": {"maxK": 50, "modes": ["dense"]}})
    blue = await engines(
        name="blue-server",
        capabilities={"retrieve": {"maxK": 90, "modes": ["sparse"]}, "filter": {"fields": {"secret": "keyword"}}},
    )
    shared = await engines(name="shared-server", capabilities={"retrieve": {"maxK": 20, "modes": ["dense"]}})
    for engine, name in ((red, "r"), (blue, "b"), (shared, "s")):
        engine.answers["retrieve"] = {"hits": [hit(f"{name}{number}", 1 - number / 50) for number in range(20)]}
    return [entry("red-1", red), entry("blue", blue), entry("shared", shared)]


async def test_a_tenant_sees_its_engines_and_no_others(engines: Any) -> None:
    """Advertisement, catalogue, hits, report and notes are of its own engines alone."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        info = await result(gateway, RED, "info")
        catalog = await result(gateway, RED, "catalog/list")
        answer = await result(gateway, RED, "retrieve", {"query": "q"})
        whole = await result(gateway, BOSS, "info")
    assert info["capabilities"]["retrieve"]["maxK"] == 50
    assert info["capabilities"]["retrieve"]["modes"] == ["dense"]
    assert "filter" not in info["capabilities"]
    assert info["capabilities"]["catalog"] == {"engines": 2}
    assert [engine["id"] for engine in catalog["engines"]] == ["red-1", "shared"]
    assert {found[0] for found in ids(answer)} == {"r", "s"}
    assert [engine["id"] for engine in answer["_meta"]["x-gateway"]["engines"]] == ["red-1", "shared"]
    assert "blue" not in json.dumps([info, catalog, answer])
    assert whole["capabilities"]["catalog"] == {"engines": 3}


@pytest.mark.parametrize(
    "params",
    [
        {"x-gateway": {"engines": ["NAME"]}},
        {"fusion": {"weights": {"NAME": 2.0}}},
    ],
)
async def test_anothers_engine_is_as_unknown_as_one_that_nobody_has(engines: Any, params: Json) -> None:
    """Naming it is the same error, to the letter, as naming one that does not exist."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        told = []
        for name in ("blue", "nobody"):
            sent = json.loads(json.dumps(params).replace("NAME", name))
            failed = await error(gateway, RED, "retrieve", {"query": "q", **sent})
            told.append(json.dumps(failed).replace(name, "NAME"))
    assert told[0] == told[1]
    assert "-32602" in told[0]


async def test_a_filter_field_of_anothers_engine_is_unknown(engines: Any) -> None:
    """What only another's engine can filter by is not advertised here."""
    params = {"query": "q", "filter": {"field": "secret", "op": "eq", "value": "x"}}
    async with running(await three(engines), tenants=TENANTS) as gateway:
        refused = await error(gateway, RED, "retrieve", params)
        allowed = await result(gateway, BLUE, "retrieve", params)
    assert (refused["code"], refused["data"]["field"]) == (-32602, "filter.secret")
    assert "blue" not in json.dumps(refused)
    assert allowed["hits"]


async def test_a_tenant_without_engines_has_nothing(engines: Any) -> None:
    """By default a tenant sees no engine; that is a gateway without any."""
    async with running(await three(engines), tenants={"poor": tenant(keys=(RED,))}) as gateway:
        info = await result(gateway, RED, "info")
        failed = await error(gateway, RED, "retrieve", {"query": "q"})
    assert info["capabilities"] == {"catalog": {"engines": 0}}
    assert failed["code"] == -32003


async def test_each_view_has_an_epoch_of_its_own(engines: Any) -> None:
    """What changes at an engine that a tenant does not see shows nowhere, not even in the epoch."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        before = [(await result(gateway, key, "info"))["_meta"]["x-gateway"]["epoch"] for key in (RED, BLUE)]
        engine = next(each for each in gateway.state.engines.engines if each.id == "blue")
        engine.advertisement = next(each.advertisement for each in gateway.state.engines.engines if each.id == "shared")
        gateway.state.engines.version += 1
        after = [(await result(gateway, key, "info"))["_meta"]["x-gateway"]["epoch"] for key in (RED, BLUE)]
    assert after[0] == before[0]
    assert after[1] == before[1] + 1


async def test_cursors_are_anothers_or_nobodys(engines: Any) -> None:
    """A cursor of another tenant is -32015, exactly as one that was never given out."""
    only = await serving(engines, *range(30))
    tenants = {"red": tenant("e", keys=(RED,)), "blue": tenant("e", keys=(BLUE,))}
    async with running([entry("e", only)], tenants=tenants) as gateway:
        first = await result(gateway, RED, "retrieve", {"query": "q", "k": 5})
        stolen = await error(gateway, BLUE, "retrieve", {"query": "q", "k": 5, "cursor": first["nextCursor"]})
        made_up = await error(gateway, BLUE, "retrieve", {"query": "q", "k": 5, "cursor": "never"})
        second = await result(gateway, RED, "retrieve", {"query": "q", "k": 5, "cursor": first["nextCursor"]})
    assert stolen == made_up
    assert stolen["code"] == -32015
    assert ids(first, second) == list(range(10))


async def test_reproducible_cursors_are_apart_as_well(engines: Any) -> None:
    """Cursors that follow from what they name are the same for two tenants, and lead each to its own page."""
    snapshots = {"retrieve": {"maxK": 100, "modes": ["dense"], "snapshots": True}}
    engine = await engines(capabilities=snapshots)
    found = [hit(number, 1 - number / 100) for number in range(30)]
    engine.answers["retrieve"] = {"hits": found, "indexVersion": "v1"}
    tenants = {"red": tenant("e", keys=(RED,)), "blue": tenant("e", keys=(BLUE,))}
    params = {"query": "q", "k": 5, "seed": 1, "indexVersion": "v1"}
    async with running([entry("e", engine)], tenants=tenants) as gateway:
        first = await result(gateway, RED, "retrieve", params)
        cursor = {"cursor": first["nextCursor"]}
        refused = await error(gateway, BLUE, "retrieve", {**params, **cursor})
        assert (await result(gateway, BLUE, "retrieve", params))["nextCursor"] == first["nextCursor"]
        pages = [await result(gateway, key, "retrieve", {**params, **cursor}) for key in (RED, BLUE)]
    assert refused["code"] == -32015
    assert ids(pages[0]) == ids(pages[1]) == list(range(5, 10))


async def test_a_page_holds_nothing_of_an_engine_that_was_taken_away(engines: Any) -> None:
    """What was kept while a tenant saw an engine is not served once it does not: the cursor is unknown then."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        first = await result(gateway, RED, "retrieve", {"query": "q", "k": 2})
        fewer = {**TENANTS, "red": tenant("shared", keys=(RED,))}
        assert gateway.state.authenticator is not None
        gateway.state.authenticator.replace(tenants_in("", {"tenants": fewer}))
        failed = await error(gateway, RED, "retrieve", {"query": "q", "k": 2, "cursor": first["nextCursor"]})
        again = await result(gateway, RED, "retrieve", {"query": "q"})
    assert failed["code"] == -32015
    assert {found[0] for found in ids(again)} == {"s"}


async def test_sessions_of_one_name_are_apart(engines: Any) -> None:
    """Two tenants that call their session alike share none, here and at the engines."""
    only = await serving(engines, *range(30))
    tenants = {"red": tenant("e", keys=(RED,)), "blue": tenant("e", keys=(BLUE,))}
    params = {"query": "q", "k": 5, "sessionId": "same"}
    async with running([entry("e", only)], tenants=tenants) as gateway:
        first = await result(gateway, RED, "retrieve", params)
        other = await result(gateway, BLUE, "retrieve", params)
        second = await result(gateway, RED, "retrieve", params)
    assert ids(first) == ids(other) == list(range(5))
    assert not set(ids(second)) & set(ids(first))
    seen = [request.params["sessionId"] for request in only.requests()]
    assert len(set(seen)) == 2
    assert "same" not in seen


async def test_nobody_calls_off_anothers_request(engines: Any) -> None:
    """The same RCP-Session header and id of another tenant cancel nothing."""
    slow = await engines()
    gate = asyncio.Event()

    async def wait(asked: Any) -> Json:
        await gate.wait()
        return {"hits": [hit("a")]}

    slow.answers["retrieve"] = wait
    tenants = {"red": tenant("e", keys=(RED,)), "blue": tenant("e", keys=(BLUE,))}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 7}}
    async with running([entry("e", slow)], tenants=tenants) as gateway:
        asking_now = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}, rcp_session="s"))
        await until(lambda: bool(slow.requests()))
        refused = await gateway.post(cancel, headers={**bearer(BLUE), "rcp-session": "s"})
        assert refused.status_code == 204
        gate.set()
        assert "result" in (await asking_now).json()
        gate.clear()
        asking_now = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}, rcp_session="s"))
        await until(lambda: len(slow.requests()) == 2)
        await gateway.post(cancel, headers={**bearer(RED), "rcp-session": "s"})
        assert (await asking_now).json()["error"]["code"] == -32006


async def test_weights_and_blend_of_a_tenant(engines: Any) -> None:
    """Its weights replace the registry's and its blend is the default; what a request says itself wins."""
    one, two = await serving(engines, 1, 2), await serving(engines, 3, 4)
    own = {"weights": {"two": 9.0}, "fusion": {"rrf_k": 5}}
    tenants = {"red": tenant("*", keys=(RED,), **own), "blue": tenant("*", keys=(BLUE,))}
    entries = [entry("one", one, weight=2.0), entry("two", two)]
    async with running(entries, {"fusion": {"method": "rrf", "confidence_weight": 0.0}}, tenants=tenants) as gateway:
        red = await result(gateway, RED, "retrieve", {"query": "q"})
        blue = await result(gateway, BLUE, "retrieve", {"query": "q"})
        said = {"fusion": {"weights": {"two": 0.5}, "rrfK": 7}}
        wished = await result(gateway, RED, "retrieve", {"query": "q", **said})
    assert [_weights(answer) for answer in (red, blue, wished)] == [[2.0, 9.0], [2.0, 1.0], [2.0, 0.5]]
    blends = [answer["_meta"]["x-gateway"]["fusion"] for answer in (red, blue, wished)]
    assert [blend["rrfK"] for blend in blends] == [5, 60, 7]
    assert {blend["confidenceWeight"] for blend in blends} == {0.0}
    assert ids(red)[0] == 3
    assert ids(blue)[0] == 1


def _weights(answer: Json) -> list[float]:
    return [engine["weight"] for engine in answer["_meta"]["x-gateway"]["engines"]]


@pytest.mark.parametrize(
    ("method", "role"),
    [
        ("retrieve", "read"),
        ("catalog/list", "read"),
        ("embed", "read"),
        ("index/add", "write"),
        ("index/delete", "write"),
        ("memory/build", "write"),
        ("feedback", "feedback"),
        ("x-acme/go", "write"),
    ],
)
async def test_roles_come_before_gates(engines: Any, method: str, role: str) -> None:
    """Who lacks the role is told so with 403 and -32012, the id echoed, before anybody looks what is offered."""
    others = sorted({"read", "write", "feedback", "admin"} - {role})
    tenants = {"lacks": tenant("*", keys=(RED,), roles=others), "has": tenant("*", keys=(BLUE,), roles=[role])}
    async with running([entry("e", await engines(capabilities={}))], tenants=tenants) as gateway:
        refused = await asked(gateway, RED, method, {})
        passed = await asked(gateway, BLUE, method, {})
        refusals = await gateway.metric("rcp_gateway_refusals_total", tenant="lacks", reason="forbidden")
    assert refused.status_code == 403
    assert (refused.json()["error"]["code"], refused.json()["id"]) == (-32012, 7)
    assert passed.status_code == 200
    assert passed.json().get("error", {}).get("code") != -32012
    assert refusals == 1


@pytest.mark.parametrize("method", ["initialize", "info", "ping", "shutdown", "no/such"])
async def test_what_needs_no_role(engines: Any, method: str) -> None:
    """Whoever is known may say hello; what is no method of RCP is -32004 for everybody."""
    async with running([entry("e", await engines())], tenants={"red": tenant(keys=(RED,), roles=[])}) as gateway:
        answer = await asked(gateway, RED, method, {})
    assert answer.status_code == 200
    assert answer.json().get("error", {}).get("code") == (-32004 if method == "no/such" else None)


async def test_members_of_a_batch_are_refused_each_for_itself(engines: Any) -> None:
    """A batch in which one member lacks a role is answered, with -32012 for that member."""
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}},
        {"jsonrpc": "2.0", "id": 2, "method": "index/add", "params": {}},
    ]
    async with running([entry("e", await engines())], tenants={"red": tenant("*", keys=(RED,))}) as gateway:
        answers = (await gateway.post(batch, headers=bearer(RED))).json()
    told = {answer["id"]: answer.get("error", {}).get("code") for answer in answers}
    assert told == {1: None, 2: -32012}


async def test_the_compact_envelope_is_no_way_around(engines: Any) -> None:
    """A request without an id needs the role as well."""
    async with running([entry("e", await engines())], tenants={"red": tenant("*", keys=(RED,), roles=[])}) as gateway:
        answer = await gateway.post({"method": "retrieve", "params": {"query": "q"}}, headers=bearer(RED))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, -32012)


async def test_the_operators_view(engines: Any) -> None:
    """GET /engines shows a tenant its own engines, an admin all, and nobody else any."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        seen = {}
        for key in (RED, BOSS):
            listed = (await gateway.client.get("/engines", headers=bearer(key))).json()["engines"]
            seen[key] = [engine["id"] for engine in listed]
        nobody = await gateway.client.get("/engines")
    assert sorted(seen[RED]) == ["red-1", "shared"]
    assert sorted(seen[BOSS]) == ["blue", "red-1", "shared"]
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    assert nobody.json()["error"]["code"] == -32012


async def test_metrics_are_not_public_by_default(engines: Any) -> None:
    """/metrics needs the role admin once callers are told apart, unless it is opened; probes are open to all."""
    entries = await three(engines)
    async with running(entries, tenants=TENANTS) as gateway:
        statuses = [
            (await gateway.client.get("/metrics", headers={} if key is None else bearer(key))).status_code
            for key in (None, RED, BOSS)
        ]
        probes = [(await gateway.client.get(path)).status_code for path in ("/livez", "/readyz")]
    async with running(entries, {"metrics": {"access": "open"}}, tenants=TENANTS) as gateway:
        opened = await gateway.client.get("/metrics")
    async with running(entries) as gateway:
        alone = await gateway.client.get("/metrics")
    assert statuses == [401, 403, 200]
    assert probes == [200, 200]
    assert (opened.status_code, alone.status_code) == (200, 200)
    assert 'rcp_gateway_tenant_requests_total{outcome="ok",tenant="red"} 0.0' in opened.text


async def test_anonymous_is_a_tenant_like_any_other(engines: Any) -> None:
    """Without credentials one is anonymous if that is declared, with wrong ones never."""
    tenants = {**TENANTS, "anonymous": tenant("shared")}
    async with running(await three(engines), tenants=tenants) as gateway:
        answer = await result(gateway, None, "retrieve", {"query": "q"})
        wrong = await asked(gateway, "no-such-key-at-all", "retrieve", {"query": "q"})
    async with running(await three(engines), tenants=TENANTS) as gateway:
        undeclared = await asked(gateway, None, "retrieve", {"query": "q"})
    assert {found[0] for found in ids(answer)} == {"s"}
    assert wrong.status_code == undeclared.status_code == 401


async def test_requests_are_counted_by_tenant(engines: Any) -> None:
    """Only declared tenants have series."""
    async with running(await three(engines), tenants=TENANTS) as gateway:
        await result(gateway, RED, "retrieve", {"query": "q"})
        await error(gateway, RED, "retrieve", {"query": 7})
        await asked(gateway, "wrong-key-wrong-key", "info")
        counted = [
            await gateway.metric("rcp_gateway_tenant_requests_total", tenant="red", outcome=outcome)
            for outcome in ("ok", "error", "degraded")
        ]
        unknown = await gateway.metric("rcp_gateway_refusals_total", tenant="-", reason="unauthenticated")
    assert counted == [1, 1, 0]
    assert unknown == 1


async def test_the_audit_line(engines: Any) -> None:
    """One line a request: tenant, name of the key, engines asked and lost with their class, hits, bytes; no text."""
    good, bad = await serving(engines, 1, 2), await engines()
    bad.answers["retrieve"] = RpcFault(-32010, "gone")
    entries = [entry("good", good), entry("bad", bad), entry("off", good, enabled=False)]
    with own_log() as log:
        async with running(entries, tenants={"red": tenant("*", keys=("x" * 20, RED))}) as gateway:
            answer = await asked(gateway, RED, "retrieve", {"query": "SECRET QUERY"})
            good.answers["retrieve"] = RpcFault(-32011, "slow down")
            await asked(gateway, RED, "retrieve", {"query": "SECRET QUERY"})
    first, second = [line for line in log.lines if line["event"] == "request"]
    assert (first["tenant"], first["key"], first["method"]) == ("red", "k1", "retrieve")
    assert (first["asked"], first["answered"], first["failed"]) == (["bad", "good"], 1, {"bad": "refused"})
    assert (first["hits"], first["outcome"], first["bytes"]) == (2, "degraded", len(answer.content))
    assert (second["answered"], second["outcome"]) == (0, "error")
    assert second["failed"] == {"bad": "refused", "good": "rate_limited"}
    assert "SECRET QUERY" not in log.text
    assert RED not in log.text


async def test_bodies_are_logged_on_demand(engines: Any) -> None:
    """With `log.bodies` the line holds the query, never a hit's text."""
    with own_log() as log:
        async with running(
            [entry("e", await engines(results=[hit("a", text="HIT TEXT")]))], {"log": {"bodies": True}}
        ) as gateway:
            await gateway.retrieve("what was asked")
    (line,) = [line for line in log.lines if line["event"] == "request"]
    assert line["query"] == "what was asked"
    assert "HIT TEXT" not in log.text


async def test_a_revoked_key_is_refused_at_once(engines: Any) -> None:
    """The next request after a reload without the key is 401; the tenant's other key goes on."""
    other = "other-key-0123456789"
    async with running([entry("e", await engines())], tenants={"red": tenant("*", keys=(RED, other))}) as gateway:
        assert await result(gateway, RED, "info")
        _replace(gateway, {"red": {"engines": ["*"], "keys": [{"id": "k1", "sha256": digest(other)}]}})
        refused = await asked(gateway, RED, "info")
        assert await result(gateway, other, "info")
    assert refused.status_code == 401


async def test_a_revoked_key_ends_what_it_began(engines: Any) -> None:
    """A plain request under way is answered 401, and engines stop working for it; others' requests go on."""
    slow = await engines()
    slow.answers["retrieve"] = hang
    tenants = {"red": tenant("*", keys=(RED,)), "blue": tenant("*", keys=(BLUE,))}
    async with running([entry("e", slow, timeoutMs=60_000)], tenants=tenants) as gateway:
        red = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}))
        blue = asyncio.create_task(asked(gateway, BLUE, "retrieve", {"query": "q"}))
        await until(lambda: len(slow.requests()) == 2)
        assert "2 in flight" in repr(gateway.state.authenticator)
        assert _replace(gateway, {"blue": tenants["blue"]}) == 1
        answer = await red
        assert not blue.done()
        blue.cancel()
    assert answer.status_code == 401
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, -32012)


async def test_the_same_name_with_another_key_is_another_key(engines: Any) -> None:
    """A key that is replaced under its old name ends what the old one began."""
    slow = await engines()
    slow.answers["retrieve"] = hang
    async with running([entry("e", slow, timeoutMs=60_000)], tenants={"red": tenant("*", keys=(RED,))}) as gateway:
        request = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}))
        await until(lambda: bool(slow.requests()))
        assert _replace(gateway, {"red": tenant("*", keys=(BLUE,))}) == 1
        assert (await request).status_code == 401
        assert "0 in flight" in repr(gateway.state.authenticator)


async def test_a_reload_that_keeps_a_key_disturbs_nobody(engines: Any) -> None:
    """Whoever's key is still declared goes on with what it began."""
    slow = await engines()
    gate = asyncio.Event()

    async def wait(asked: Any) -> Json:
        await gate.wait()
        return {"hits": [hit("a")]}

    slow.answers["retrieve"] = wait
    async with running([entry("e", slow)], tenants={"red": tenant("*", keys=(RED,))}) as gateway:
        request = asyncio.create_task(asked(gateway, RED, "retrieve", {"query": "q"}))
        await until(lambda: bool(slow.requests()))
        assert _replace(gateway, {"red": tenant("*", keys=(RED,), weights={"e": 2.0}), "new": tenant()}) == 0
        gate.set()
        assert "result" in (await request).json()


async def test_a_revoked_key_ends_its_open_stream(engines: Any) -> None:
    """An event stream is ended with a last frame that says -32012."""
    quick, slow = await ScriptedEngine().start(), await ScriptedEngine().start()
    slow.answers["retrieve"] = hang
    entries = [entry("quick", quick), entry("slow", slow, timeoutMs=60_000)]
    try:
        async with (
            listening(entries, tenants={"red": tenant("*", keys=(RED,))}) as (state, port),
            asking(port, question(), authorization=f"Bearer {RED}") as reader,
        ):
            await reader.head()
            assert (await reader.progress())["stage"] == "recall"
            assert state.authenticator is not None
            state.authenticator.replace(tenants_in("", {"tenants": {}}))
            last = await reader.message()
            assert await reader.message() is None
    finally:
        await asyncio.gather(quick.stop(), slow.stop())
    assert (last["id"], last["error"]["code"]) == (1, -32012)


async def test_a_key_revoked_while_the_body_is_on_its_way(engines: Any) -> None:
    """A caller that was let in and dawdles with its body is put out like any other."""
    async with running([entry("e", await engines())], tenants={"red": tenant("*", keys=(RED,))}) as gateway:
        arrived, more = asyncio.Event(), asyncio.Event()

        async def body() -> Any:
            yield b'{"jsonrpc": "2.0", '
            arrived.set()
            await more.wait()
            yield b'"id": 1, "method": "info"}'

        request = asyncio.create_task(gateway.client.post("/rcp", content=body(), headers=bearer(RED)))
        await arrived.wait()
        await until(lambda: "1 in flight" in repr(gateway.state.authenticator))
        _replace(gateway, {})
        response = await request
        more.set()
    assert response.status_code == 401


def _replace(gateway: RunningGateway, tenants: Json) -> int:
    assert gateway.state.authenticator is not None
    return gateway.state.authenticator.replace(tenants_in("", {"tenants": tenants}))


@pytest.mark.parametrize(
    ("roles", "offered"),
    [
        (["read"], {"retrieve", "rerank"}),
        (["write"], {"index", "x-acme"}),
        (["read", "write"], {"retrieve", "rerank", "index", "x-acme"}),
        (["admin"], set()),
    ],
)
async def test_what_a_tenant_may_not_use_is_not_offered_to_it(
    engines: Any, roles: list[str], offered: set[str]
) -> None:
    """Capabilities whose every method needs a role that it lacks are not in its advertisement."""
    can = {"retrieve": {}, "rerank": {"methods": ["llm"]}, "index": {"writable": True}, "x-acme": {}}
    engine = await engines(capabilities=can)
    tenants = {"red": tenant("*", keys=(RED,), roles=roles)}
    async with running([entry("e", engine)], {"index": {"enabled": True}}, tenants=tenants) as gateway:
        info = await result(gateway, RED, "info")
    assert info["capabilities"].keys() & {"retrieve", "rerank", "index", "x-acme"} == offered
