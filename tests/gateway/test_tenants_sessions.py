"""The endpoint of one engine, and handshakes, where callers are told apart; engines of gateways that joined."""

from typing import Any

import httpx2
import pytest

from app.federation.membership import Membership
from app.federation.tenants import Tenant
from tests.support.fake_engine import FakeEngine, FakeEngines
from tests.support.running_gateway import Json, RunningGateway, entry, running
from tests.support.scripted_engine import hit
from tests.support.tenancy import bearer, tenant

RED, BLUE = "red-key-0123456789", "blue-key-0123456789"
TENANTS: Json = {"red": tenant("red", keys=(RED,)), "blue": tenant("blue", keys=(BLUE,))}


async def at(gateway: RunningGateway, engine: str, key: str | None, method: str, **params: Any) -> httpx2.Response:
    """The answer of one engine's endpoint."""
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    headers = {} if key is None else bearer(key)
    return await gateway.post(message, f"/engines/{engine}/rcp", headers)


async def test_anothers_engine_has_no_endpoint(engines: Any) -> None:
    """It is 404 with -32015, to the letter as one that nobody has; strangers are told nothing but 401."""
    async with running([entry("red", await engines()), entry("blue", await engines())], tenants=TENANTS) as gateway:
        own = await at(gateway, "red", RED, "retrieve", query="q")
        others = await at(gateway, "blue", RED, "retrieve", query="q")
        nobodys = await at(gateway, "nono", RED, "retrieve", query="q")
        failed_auth = [(await at(gateway, name, None, "info")).status_code for name in ("red", "blue", "nono")]
    assert own.json()["result"]["hits"]
    assert (others.status_code, others.json()["error"]["code"]) == (404, -32015)
    assert others.text.replace("blue", "nono") == nobodys.text
    assert failed_auth == [401, 401, 401]


async def test_roles_hold_at_the_endpoint_of_an_engine(engines: Any) -> None:
    """What a tenant may not use is neither offered nor done there."""
    engine = await engines(capabilities={"retrieve": {}, "index": {"writable": True}, "x-acme": {}, "feedback": {}})
    engine.answers["x-acme/go"] = {"done": True}
    async with running([entry("red", engine)], {"index": {"enabled": True}}, tenants=TENANTS) as gateway:
        info = (await at(gateway, "red", RED, "info")).json()["result"]
        refused = [await at(gateway, "red", RED, method) for method in ("index/add", "x-acme/go", "feedback")]
    assert info["capabilities"].keys() == {"retrieve"}
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [(403, -32012)] * 3
    assert not engine.requests("x-acme/go")


async def test_sessions_and_trust_at_the_endpoint_of_an_engine(engines: Any) -> None:
    """An engine is told another session for each tenant, and its hits are trusted no further than anywhere."""
    engine = await engines(results=[hit("a", trust={"level": "trusted"}), hit("b")])
    tenants = {"red": tenant("e", keys=(RED,)), "blue": tenant("e", keys=(BLUE,))}
    async with running([entry("e", engine, maxTrust="community")], tenants=tenants) as gateway:
        for key in (RED, BLUE):
            found = (await at(gateway, "e", key, "retrieve", query="q", sessionId="same")).json()["result"]["hits"]
    assert [each.get("trust") for each in found] == [{"level": "community"}, None]
    seen = [request.params["sessionId"] for request in engine.requests()]
    assert len(set(seen)) == 2
    assert "same" not in seen


async def test_a_handshake_is_a_keys_own(engines: Any) -> None:
    """Where a handshake is required, each key makes its own; another tenant's token is none."""
    tenants = {"red": tenant("*", keys=(RED,)), "blue": tenant("*", keys=(BLUE,))}
    async with running(
        [entry("e", await engines())], {"server": {"handshake": "required"}}, tenants=tenants
    ) as gateway:

        async def said(key: str, method: str, session: str | None = None) -> Json:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"query": "q"}}
            headers = bearer(key) if session is None else {**bearer(key), "rcp-session": session}
            answer: Json = (await gateway.post(message, headers=headers)).json()
            return answer

        first = await said(RED, "initialize")
        assert "result" in await said(RED, "retrieve")
        assert (await said(BLUE, "retrieve"))["error"]["code"] == -32001
        token = first["result"]["_meta"]["session"]
        assert (await said(BLUE, "retrieve", token))["error"]["code"] == -32001
        assert "result" in await said(BLUE, "initialize")
        assert "result" in await said(BLUE, "retrieve")


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [(("eu",), ["eu/docs"]), (("eu/*",), ["eu/docs"]), (("e*",), ["eu/docs"]), (("own",), ["own"]), ((), [])],
)
def test_who_sees_a_gateway_sees_what_joined_through_it(patterns: tuple[str, ...], seen: list[str]) -> None:
    """A gateway's name stands for its engines; its engines alone may be named as well."""
    engines = FakeEngines(FakeEngine("eu/docs"), FakeEngine("own"))
    engines.groups = {"eu": ("eu/docs",)}
    members = Membership(engines, "us", max_k=200).current(Tenant("a", patterns))
    assert [engine.id for engine in members.engines] == seen
    assert dict(members.groups) == (engines.groups if {"eu", "e*"} & set(patterns) else {})
