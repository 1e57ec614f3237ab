"""`explain`: the plan of a request and the parts of each rank, beside the answer or instead of it."""

from typing import Any

import pytest

from tests.gateway.conftest import Starter
from tests.support.console_stage import OFFER, usual
from tests.support.running_gateway import Json, RunningGateway, entry, running
from tests.support.scripted_engine import hits

LOOPBACK = {"host": "127.0.0.1:8080", "content-type": "application/json"}


class Usual:
    """A gateway over the usual engines."""

    def __init__(self, settings: Json | None = None) -> None:
        self.engines = usual()
        self._settings = settings
        self._gateway: Any = None

    async def __aenter__(self) -> RunningGateway:
        for engine in self.engines.values():
            await engine.start()
        entries = [entry(name, engine) for name, engine in self.engines.items()]
        self._gateway = running(entries, self._settings)
        gateway: RunningGateway = await self._gateway.__aenter__()
        return gateway

    async def __aexit__(self, *fault: Any) -> None:
        await self._gateway.__aexit__(*fault)
        for engine in self.engines.values():
            await engine.stop()


async def admin(gateway: RunningGateway, path: str, body: Any = None, **headers: str) -> Json:
    """What the operator of this machine is answered."""
    sent = {**LOOPBACK, **headers}
    request = gateway.client.get(path, headers=sent) if body is None else gateway.post(body, path, sent)
    response = await request
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def test_a_dry_run_asks_nobody() -> None:
    """The plan says who would get which params until when, and nobody was asked."""
    stage = Usual()
    async with stage as gateway:
        wish = {"query": "sort", "k": 7, "fusion": {"weights": {"code": 3}}, "x-gateway": {"engines": ["code", "docs"]}}
        plan = (await admin(gateway, "/admin/explain", wish))["plan"]
    assert [engine.requests() for engine in stage.engines.values()] == [[], [], []]
    engine_calls = {engine_call["engine"]: engine_call for engine_call in plan["legs"]}
    assert {name: engine_call["weight"] for name, engine_call in engine_calls.items()} == {"code": 3, "docs": 1}
    assert engine_calls["code"]["params"]["query"] == "sort"
    assert engine_calls["code"]["params"]["k"] == engine_calls["code"]["k"] == plan["window"] == 20
    assert 0 < engine_calls["code"]["deadlineMs"] < 10_000
    assert plan["left"] == [{"engine": "wiki", "reason": "not_selected", "detail": "the request names other engines"}]
    assert plan["fusion"] == {
        "method": "rrf",
        "rrfK": 60,
        "confidenceWeight": 0.8,
        "identity": "id",
        "silent": "scores",
    }


async def test_a_dry_run_says_what_is_left_out() -> None:
    """An engine that cannot filter is left out with the reason, one that lacks an option is asked without it."""
    async with Usual() as gateway:
        wish = {
            "query": "sort",
            "mode": "dense",
            "strict": False,
            "filter": {"field": "lang", "op": "eq", "value": "py"},
        }
        plan = (await admin(gateway, "/admin/explain", wish))["plan"]
        plain = (await admin(gateway, "/admin/explain", {"query": "q", "mode": "dense", "strict": False}))["plan"]
    assert {one["engine"]: one["reason"] for one in plan["left"]} == {"wiki": "filter"}
    assert {engine_call["engine"]: engine_call.get("without") for engine_call in plain["legs"]} == {
        "docs": None,
        "code": None,
        "wiki": ["mode"],
    }
    assert plain["notes"]


async def test_a_plan_that_cannot_be_made_is_an_error() -> None:
    """What the request would be refused for, it is refused for here: with the same code and field."""
    async with Usual() as gateway:
        response = await gateway.post({"query": "q", "k": 0}, "/admin/explain", LOOPBACK)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32602
    assert response.json()["error"]["data"]["field"] == "k"


async def test_an_answer_explains_its_parts() -> None:
    """With `explain` the answer holds its plan, each hit's parts and the lists, and the hits are as without."""
    async with Usual() as gateway:
        plain = await gateway.retrieve(k=4)
        told = await gateway.retrieve(k=4, **{"x-gateway": {"explain": True}})
    assert told["hits"] == plain["hits"]
    assert "explain" not in plain["_meta"]["x-gateway"]
    explained = told["_meta"]["x-gateway"]["explain"]
    assert [engine_call["engine"] for engine_call in explained["plan"]["legs"]] == ["code", "docs", "wiki"]
    for one, hit in zip(explained["hits"], told["hits"], strict=True):
        assert one["id"] == hit["id"]
        assert one["sum"] == pytest.approx(hit["meta"]["fusedScore"], abs=1e-11)
        assert sum(part["share"] for part in one["parts"]) == pytest.approx(1)
        marks = {mark["id"]: (mark["rank"], mark.get("confidence")) for mark in hit["meta"]["engines"]}
        assert {part["engine"]: (part["rank"], part["confidence"]) for part in one["parts"]} == marks
    lists = {one["engine"]: [hit["key"] for hit in one["hits"]] for one in explained["lists"]}
    assert lists["wiki"] == ["radix", "sorted", "unix.sort", "sql.orderby"]
    assert list(explained["spentMs"]) == ["fuse"]
    assert 0 < explained["spentMs"]["fuse"] < told["usage"]["latencyMs"]


@pytest.mark.parametrize("identity", ["id", "uri", "content"])
async def test_what_was_listed_fuses_to_the_same_order(identity: str) -> None:
    """The lists of an answer, fused once more with the same wishes, give its order and its sums."""
    async with Usual() as gateway:
        told = await gateway.retrieve(k=10, **{"x-gateway": {"explain": True, "identity": identity}})
        explained, blend = told["_meta"]["x-gateway"]["explain"], told["_meta"]["x-gateway"]["fusion"]
        wish = {
            "lists": explained["lists"],
            "k": 10,
            **{key: blend[key] for key in ("method", "rrfK", "confidenceWeight")},
        }
        again = await admin(gateway, "/admin/fuse", wish)
        heavier = [{**one, "weight": 9.0 if one["engine"] == "wiki" else one["weight"]} for one in explained["lists"]]
        moved = await admin(gateway, "/admin/fuse", {**wish, "lists": heavier})
    assert [one["key"] for one in again["hits"]] == [one["key"] for one in explained["hits"]]
    assert [one["sum"] for one in again["hits"]] == [one["sum"] for one in explained["hits"]]
    assert again["ceiling"] == explained["ceiling"]
    first = explained["lists"][-1]["hits"][0]["key"]
    assert moved["hits"][0]["key"] in {first, explained["lists"][-1]["hits"][1]["key"]}


async def test_lists_may_be_longer_than_what_callers_send() -> None:
    """What an answer lists can be fused once more, however long it is; other bodies keep to the bound."""
    async with Usual({"server": {"max_body_bytes": 1024}}) as gateway:
        lists = [{"engine": f"e{number}", "hits": [{"key": "x" * 900, "score": 1.0}]} for number in range(50)]
        fused = await admin(gateway, "/admin/fuse", {"lists": lists})
        long = await gateway.post({"query": "x" * 2000}, "/admin/explain", LOOPBACK)
        endless = await gateway.post({"lists": lists * 200}, "/admin/fuse", LOOPBACK)
    assert len(fused["hits"][0]["parts"]) == 50
    assert (long.status_code, endless.status_code) == (413, 413)


async def test_long_hits_are_listed_in_short(engines: Starter) -> None:
    """A list names a hit's title and the beginning of its text, however long they are."""
    long = [{"id": "a", "score": 1, "text": "x" * 100_000, "citation": {"title": "t" * 5000}}]
    async with running([entry("docs", await engines(results=long))]) as gateway:
        told = await gateway.retrieve(**{"x-gateway": {"explain": True}})
    (listed,) = told["_meta"]["x-gateway"]["explain"]["lists"][0]["hits"]
    assert (len(listed["title"]), len(listed["snippet"])) == (200, 240)


async def test_explain_must_be_a_flag(engines: Starter) -> None:
    """Anything but true or false is refused with the field."""
    async with running([entry("docs", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "x-gateway": {"explain": "yes"}})
    assert error["data"]["field"] == "x-gateway.explain"


async def test_explaining_a_page_that_is_kept(engines: Starter) -> None:
    """Also a page that nobody is asked for tells the parts of its hits."""
    engine = await engines(capabilities=OFFER, results=hits(*range(30)))
    async with running([entry("docs", engine)], {"retrieve": {"window_min": 30}}) as gateway:
        first = await gateway.retrieve(k=5)
        wish = {"cursor": first["nextCursor"], "k": 5, "x-gateway": {"explain": True}}
        second = await gateway.retrieve(**wish)
    explained = second["_meta"]["x-gateway"]["explain"]
    assert [one["parts"][0]["rank"] for one in explained["hits"]] == [6, 7, 8, 9, 10]
    assert explained["plan"]["legs"] == []


async def test_a_plan_says_who_reranks(engines: Starter) -> None:
    """Where the union is to be reranked, the plan names who may be asked for it and how much they get."""
    docs = await engines()
    judge = await engines(capabilities={"rerank": {"methods": ["cross-encoder"]}})
    async with running([entry("docs", docs), entry("judge", judge)]) as gateway:
        wish = {"query": "q", "rerank": {"method": "cross-encoder", "topN": 12}}
        plan = (await admin(gateway, "/admin/explain", wish))["plan"]
    assert plan["union"] == {"rerankers": ["judge"], "topN": 12}
    assert [engine_call["engine"] for engine_call in plan["legs"]] == ["docs"]
