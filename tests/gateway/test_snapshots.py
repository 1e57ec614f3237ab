"""Snapshots: one token for the versions of all engines, pinned to each of them, served or refused, never another."""

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest

from tests.support.corpora import ids, pages_of
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import RpcFault, ScriptedEngine, hang, hit

Json = dict[str, Any]
SNAPSHOTS = {"retrieve": {"maxK": 100, "snapshots": True, "deterministic": True}}


def versions(**corpora: list[Any]) -> Any:
    """An engine with a corpus per version; the first is the present one. Another version is -32010."""

    async def answer(asked: Any) -> Any:
        version = asked.params.get("indexVersion", next(iter(corpora)))
        if version not in corpora:
            return RpcFault(-32010, f"no snapshot {version}")
        ranked = [hit(id, 1 - rank / 100) for rank, id in enumerate(corpora[version])]
        return {"hits": ranked[: asked.params["k"]], "indexVersion": version}

    return answer


async def keeping(engines: Any, **corpora: list[Any]) -> ScriptedEngine:
    """A started engine with snapshots."""
    engine: ScriptedEngine = await engines(capabilities=SNAPSHOTS)
    engine.answers["retrieve"] = versions(**corpora)
    return engine


def pinned(engine: ScriptedEngine) -> Any:
    """The version that the engine was last asked for."""
    return engine.requests()[-1].params.get("indexVersion")


async def test_a_token_pins_each_engine(engines: Any) -> None:
    """The answer's `indexVersion` holds each engine's; sent back, each engine is pinned to its own, and answers so."""
    one, two = await keeping(engines, v1=["a", "b"]), await keeping(engines, r7=["b", "c"])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        assert (await gateway.result("info"))["capabilities"]["retrieve"]["snapshots"] is True
        then = await gateway.retrieve()
        one.answers["retrieve"] = versions(v2=["new", "newer"], v1=["a", "b"])
        now = await gateway.retrieve()
        again = await gateway.retrieve(indexVersion=then["indexVersion"])
    assert set(ids(now)) == {"new", "newer", "b", "c"}
    assert now["indexVersion"] != then["indexVersion"] == again["indexVersion"]
    assert again["hits"] == then["hits"]
    assert (pinned(one), pinned(two)) == ("v1", "r7")


async def test_the_token_is_url_safe_and_opaque(engines: Any) -> None:
    """It can stand in a URL as it is; inside it is JSON of engine and version."""
    engine = await keeping(engines, **{"v/ü?&": ["a"]})
    async with running([entry("e", engine)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
    assert token.isascii()
    assert not set("+/=&? ") & set(token)
    body = token.partition(".")[2]
    assert json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4))) == {"e": "v/ü?&"}


async def test_no_token_unless_all_that_take_part_have_snapshots(engines: Any) -> None:
    """With one engine without snapshots there is no token, and with only those that have, by `x-gateway.engines`, there
    is; an engine that names no version makes no token."""
    able, unable = await keeping(engines, v1=["a"]), await engines()
    silent = await engines(capabilities=SNAPSHOTS)
    entries = [entry("able", able), entry("unable", unable), entry("silent", silent)]
    async with running(entries) as gateway:
        assert "snapshots" not in (await gateway.result("info"))["capabilities"]["retrieve"]
        for names, has_token in ((["able", "unable"], False), (["able"], True), (["able", "silent"], False)):
            result = await gateway.retrieve(**{"x-gateway": {"engines": names}})
            assert ("indexVersion" in result) is has_token


async def test_engines_outside_the_token_are_skipped(engines: Any) -> None:
    """An engine that joined after the snapshot is not asked, and the report says why."""
    old, new = await keeping(engines, v1=["a"]), await keeping(engines, v9=["z"])
    async with running([entry("old", old), entry("new", new)]) as gateway:
        token = (await gateway.retrieve(**{"x-gateway": {"engines": ["old"]}}))["indexVersion"]
        result = await gateway.retrieve(indexVersion=token)
        lenient = await gateway.retrieve(indexVersion=token, strict=False)
    report = {engine["id"]: engine.get("reason") for engine in result["_meta"]["x-gateway"]["engines"]}
    assert report == {"old": None, "new": "snapshot"}
    assert ids(result) == ids(lenient) == ["a"]
    assert not new.requests()


async def test_a_snapshot_that_is_gone(engines: Any) -> None:
    """An engine that cannot serve its version any more fails the whole request with -32010, by name."""
    one, two = await keeping(engines, v1=["a"]), await keeping(engines, r7=["b"])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
        one.answers["retrieve"] = versions(v2=["new"])
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": token})
        lenient = await gateway.error("retrieve", {"query": "q", "indexVersion": token, "strict": False})
    assert error["code"] == lenient["code"] == -32010
    assert "'one'" in error["message"]
    assert not error["data"]["retryable"]


async def test_an_engine_that_serves_another_version(engines: Any) -> None:
    """An engine that answers with another version than it was pinned to fails the request: never another silently."""
    engine = await keeping(engines, v1=["a"])
    async with running([entry("e", engine), entry("f", await keeping(engines, r1=["b"]))]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
        engine.answers["retrieve"] = {"hits": [hit("x")], "indexVersion": "v2"}
        assert (await gateway.error("retrieve", {"query": "q", "indexVersion": token}))["code"] == -32010


async def test_a_pinned_engine_that_is_slow_or_down(engines: Any) -> None:
    """Whatever keeps a pinned engine from serving its version, it is -32010 and may be tried again."""
    engine, other = await keeping(engines, v1=["a"]), await keeping(engines, r1=["b"])
    async with running([entry("e", engine, timeoutMs=2000), entry("f", other)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
        engine.answers["retrieve"] = hang
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": token})
    assert error["code"] == -32010
    assert error["data"]["retryable"]


async def test_a_snapshot_that_is_gone_keeps_nobody_waiting(engines: Any) -> None:
    """As soon as one engine cannot serve its version the others are not waited for."""
    one, two = await keeping(engines, v1=["a"]), await keeping(engines, r7=["b"])
    async with running([entry("one", one), entry("two", two, timeoutMs=60_000)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
        one.answers["retrieve"] = versions(v2=["new"])
        two.answers["retrieve"] = hang
        assert (await gateway.error("retrieve", {"query": "q", "indexVersion": token}))["code"] == -32010
        assert await gateway.metric("rcp_gateway_legs_total", engine="two", outcome="cancelled") == 1


async def test_an_engine_of_the_token_that_left(engines: Any) -> None:
    """An engine that is unknown here, disabled, or has no snapshots any more: -32010."""
    one, two = await keeping(engines, v1=["a"]), await keeping(engines, r7=["b"])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
    for entries in ([entry("one", one)], [entry("one", one), entry("two", two, enabled=False)]):
        async with running(entries) as gateway:
            assert (await gateway.error("retrieve", {"query": "q", "indexVersion": token}))["code"] == -32010
    two.capabilities = {"retrieve": {}}
    async with running([entry("one", one), entry("two", two)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": token, "strict": False})
    assert error["code"] == -32010
    assert "'two'" in error["message"]


@pytest.mark.parametrize(
    "token", ["fed1.", "fed1.!!!", "fed1.e30", "fed1.eyJhIjoxfQ", "fed1.eyJhIjogInYifQ", "fed1." + "A" * 70_000]
)
async def test_a_malformed_token(engines: Any, token: str) -> None:
    """What begins like a token and is none, or not as it was given out, is -32602 with the field."""
    engine = await keeping(engines, v1=["a"])
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": token})
    assert error["code"] == -32602
    assert error["data"]["field"] == "indexVersion"
    assert not engine.requests()


async def test_an_engines_own_version_for_one_engine(engines: Any) -> None:
    """A plain version goes to the one engine that can serve it, as it is, and comes back as it is; for several it means
    nothing and is -32602."""
    one, two = await keeping(engines, v2=["new"], v1=["a"]), await keeping(engines, v1=["b"])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve(**{"indexVersion": "v1", "x-gateway": {"engines": ["one"]}})
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": "v1"})
        gone = await gateway.error("retrieve", {"query": "q", "indexVersion": "v0", "x-gateway": {"engines": ["one"]}})
    assert ids(result) == ["a"]
    assert result["indexVersion"] == "v1"
    assert error["code"] == -32602
    assert error["data"]["field"] == "indexVersion"
    assert gone["code"] == -32010


async def test_nobody_has_snapshots(engines: Any) -> None:
    """A version that no engine could honour is -32005; leniently it is left out, with a note."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "indexVersion": "v1"})
        result = await gateway.retrieve(indexVersion="v1", strict=False)
    assert error["code"] == -32005
    assert error["data"]["option"] == "indexVersion"
    assert any("indexVersion" in note for note in result["usage"]["notes"])


def timeless(result: Json) -> str:
    """The whole result, to the byte, but for times."""
    del result["usage"]["latencyMs"]
    for engine in result["_meta"]["x-gateway"]["engines"]:
        del engine["tookMs"]
    return json.dumps(result)


async def test_seed_and_snapshot_give_the_same_to_the_bit(engines: Any) -> None:
    """The seed reaches every engine; pinned and seeded, the answer and its pages are the same, cursors included."""
    one, two = await keeping(engines, v1=list(range(30))), await keeping(engines, r7=list(range(20, 60)))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        token = (await gateway.retrieve())["indexVersion"]
        runs = [await pages_of(gateway, (7,), indexVersion=token, seed=42) for _ in range(2)]
    assert [timeless(page) for page in runs[0]] == [timeless(page) for page in runs[1]]
    assert {request.params.get("seed") for request in one.requests()[1:]} == {42}
    assert len(set(ids(*runs[0]))) == len(ids(*runs[0])) == 60


async def test_a_seed_is_never_an_error(engines: Any) -> None:
    """A seed is handed on to whoever may use it; nobody is skipped for it."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        await gateway.retrieve(seed=-7)
    assert engine.requests()[0].params["seed"] == -7
