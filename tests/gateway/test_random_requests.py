"""Random requests against random federations: what must hold whatever is advertised, asked and answered."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import MAX_HITS
from app.federation.pagination import Pages
from app.federation.retrieve import retrieve
from app.protocol.errors import CALL_KINDS, BadStatus, RcpError
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, call_of, members_of
from tests.support.virtual_time import virtually

SETTINGS = GatewaySettings.model_validate({"retrieve": {"max_k": 40, "window_min": 6}})

OFFERS = st.fixed_dictionaries(
    {},
    optional={
        "maxK": st.integers(1, 60),
        "modes": st.lists(st.sampled_from(["dense", "sparse"]), max_size=2),
        "units": st.lists(st.sampled_from(["chunk", "page"]), max_size=2),
        "mmr": st.booleans(),
        "rerankBuiltin": st.booleans(),
        "snapshots": st.booleans(),
        "scoreFloor": st.sampled_from([0.0, -1.0]),
    },
)
ADVERTISEMENTS = st.fixed_dictionaries(
    {"retrieve": OFFERS},
    optional={
        "rerank": st.fixed_dictionaries({"methods": st.just(["llm"])}, optional={"maxCandidates": st.integers(1, 30)}),
        "filter": st.just({"fields": {"lang": "keyword"}}),
        "session": st.fixed_dictionaries({}, optional={"dedup": st.booleans()}),
    },
)
CONFIDENCES = st.floats(0, 1) | st.sampled_from([None, None, -1, 7, "high", True, 0, 1])
HITS = st.builds(
    lambda id, confidence, words, uri: {
        "id": id,
        **({} if confidence is None else {"confidence": confidence}),
        "text": " ".join(words),
        "citation": {"uri": f"https://example.org/{uri}"},
    },
    st.integers(0, 60) | st.integers(0, 60).map(str),
    CONFIDENCES,
    st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6),
    st.integers(0, 30),
)
ENGINES = st.fixed_dictionaries(
    {
        "capabilities": ADVERTISEMENTS,
        "corpus": st.lists(HITS, max_size=45),
        "weight": st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]),
        "down": st.integers(0, 9).map(lambda chance: chance == 0),
        "namespace": st.sampled_from([None, None, "ns"]),
    }
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 50),
        "mode": st.sampled_from(["dense", "sparse"]),
        "unit": st.sampled_from(["chunk", "page"]),
        "filter": st.just({"field": "lang", "op": "eq", "value": "de"}),
        "rerank": st.sampled_from([{"method": "llm"}, {"method": "llm", "topN": 50}, False]),
        "candidateK": st.integers(50, 80),
        "mmr": st.just({"lambda": 0.5}),
        "fusion": st.sampled_from([{"method": "weighted"}, {"method": "convex"}, {"rrfK": 5, "weights": {"e0": 2}}]),
        "minScore": st.floats(0, 1),
        "tokenBudget": st.integers(1, 40),
        "sessionId": st.just("s"),
        "includeText": st.booleans(),
        "strict": st.booleans(),
        "seed": st.just(1),
        "x_gateway": st.fixed_dictionaries(
            {},
            optional={
                "identity": st.sampled_from(["id", "uri", "content"]),
                "confidenceWeight": st.sampled_from([0, 0.5, 1]),
                "mmr": st.sampled_from([{}, {"lambda": 0.9}]),
            },
        ),
    },
)


def engine_of(place: int, made: Json, delay: float = 0.0) -> FakeEngine:
    """An engine that checks what it is asked, and returns as much of its corpus."""
    corpus = [{**found, "score": 100.0 - rank} for rank, found in enumerate(made["corpus"])]
    offer = made["capabilities"]["retrieve"]

    async def answer(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(delay)
        if made["down"]:
            raise BadStatus("503")
        if "passages" in params:
            return judged(params, made["capabilities"]["rerank"])
        check_sent(params, made["capabilities"])
        result: Json = {"hits": [dict(found) for found in corpus[: params["k"]]]}
        return {**result, "indexVersion": f"v{place}"} if offer.get("snapshots") else result

    wishes: Json = {"weight": made["weight"], "idNamespace": made["namespace"]}
    return FakeEngine(f"e{place}", answer, capabilities=made["capabilities"], **wishes)


def judged(params: Mapping[str, Any], offer: Json) -> Json:
    """What a reranker makes of passages that it takes: the later in the alphabet the better."""
    passages = params["passages"]
    assert 1 <= len(passages) <= offer.get("maxCandidates", MAX_HITS)
    assert all(passages)
    assert params["method"] == "llm"
    assert not {"topN", "k", "sessionId"} & params.keys()
    return {"scores": [float(sum(ord(engine_request) for engine_request in passage) % 97) for passage in passages]}


def check_sent(params: Mapping[str, Any], capabilities: Json) -> None:
    """The funnel, the bounds, and that nothing of ours leaks."""
    rerank = params.get("rerank") or {}
    top = rerank.get("topN", params["k"])
    assert params.get("candidateK", top) >= top >= params["k"] >= 1
    assert params["k"] <= capabilities["retrieve"].get("maxK", MAX_HITS)
    assert top <= (capabilities.get("rerank", {}).get("maxCandidates", top) if "topN" in rerank else top)
    assert not {"minScore", "tokenBudget", "cursor", "x-gateway"} & params.keys()
    assert params.get("sessionId") != "s"


class Federation:
    """One gateway's journey over fake engines, with pages of its own."""

    def __init__(self, made: list[Json], delays: list[float] | None = None, backwards: bool = False) -> None:
        self.engines = [engine_of(place, one, delays[place] if delays else 0.0) for place, one in enumerate(made)]
        self.members = members_of(*(reversed(self.engines) if backwards else self.engines), max_k=40, disabled=["off"])
        metrics = Metrics("test")
        metrics.declare_engines(self.members.ids(), CALL_KINDS)
        self.instrumentation = RetrieveInstrumentation(metrics)
        self.pages = Pages.from_settings(SETTINGS.state)

    async def ask(self, **params: Any) -> Any:
        """The result of one request. Raises RcpError."""
        call = call_of(now=asyncio.get_running_loop().time(), **params)
        return (await retrieve(call, self.members, SETTINGS, self.instrumentation, None, self.pages)).result


def refusal(error: RcpError) -> Json:
    """An error as it is compared: what times and orders of arrival do not change."""
    assert error.code in (-32005, -32602, -32003, -32010, -32014)
    return {"code": error.code, "field": error.data.get("field"), "option": error.data.get("option")}


def check_refusal(error: RcpError, served: list[str]) -> None:
    """Once something was served, only engines that are down can refuse a page."""
    refusal(error)
    assert not served or error.code == -32010


def timeless(result: Json) -> str:
    """A result to the byte, but for times and names of cursors."""
    kept = json.loads(json.dumps(result))
    kept["nextCursor"] = "nextCursor" in kept
    del kept["usage"]["latencyMs"]
    kept["usage"].pop("notes", None)  # a failure's note says after how many milliseconds
    gateway = kept["_meta"]["x-gateway"]
    for engine in (*gateway["engines"], *gateway.get("fusion", {}).get("rerank", {}).get("asked", ())):
        del engine["tookMs"]
    return json.dumps(kept)


def check_result(result: Json, request: Json, engines: list[FakeEngine]) -> None:
    """What holds for every answer."""
    found = result["hits"]
    assert len(found) <= min(request.get("k", 10), 40)
    scores = [hit["score"] for hit in found]
    assert all(0 <= score <= 1 for score in scores)
    assert all(score >= request.get("minScore", 0) for score in scores)
    if "mmr" not in result["_meta"]["x-gateway"].get("fusion", {}):
        assert scores == sorted(scores, reverse=True)
    assert all(0 <= hit["confidence"] <= 1 for hit in found if "confidence" in hit)
    if request.get("includeText") is False:
        assert all("text" not in hit for hit in found)
    if "tokenBudget" in request:
        assert result["usage"]["tokens"] <= request["tokenBudget"] or len(found) == 1
    check_report(result, engines)


def check_report(result: Json, engines: list[FakeEngine]) -> None:
    """Skipped and asked together are all engines, once each, each with a reason or an answer."""
    report = result["_meta"]["x-gateway"]["engines"]
    assert [entry["id"] for entry in report] == sorted(["off", *(engine.id for engine in engines)])
    for entry in report:
        assert entry["status"] in ("ok", "failed", "skipped")
        assert entry["status"] == "ok" or (entry["reason"] and entry["detail"])
        assert ("k" in entry) is (entry["status"] != "skipped")


QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(made=st.lists(ENGINES, min_size=1, max_size=4), request=REQUESTS, delays=st.permutations([0.0, 0.1, 0.2, 0.3]))
def test_answers_do_not_depend_on_arrival_and_registry_order(made: list[Json], request: Json, delays: Any) -> None:
    """Whatever is asked, the answer holds what it must, and whoever stands or answers first changes nothing."""

    async def story(delays: list[float] | None, backwards: bool) -> Any:
        federation = Federation(made, delays, backwards)
        try:
            result = await federation.ask(**request)
        except RcpError as error:
            return refusal(error)
        check_result(result, request, federation.engines)
        return timeless(result)

    plain = virtually(story(None, False))
    assert virtually(story(list(delays), True)) == plain


def mark(hit: Json, identity: str) -> str:
    """What makes this hit the document that it is."""
    if identity == "uri":
        return str(hit["citation"]["uri"])
    return hit.get("text") or f"{hit['id']}" if identity == "content" else f"{hit['id']}"


def reach(engine: FakeEngine) -> int:
    """The most hits that this engine was asked for."""
    return max((params["k"] for params in engine.asked if "k" in params), default=0)


def check_whole(federation: Federation, made: list[Json], served: list[Any]) -> None:
    """Everything that engines gave was served, and whoever could give more was asked for more."""
    given: set[str] = set()
    for engine, one in zip(federation.engines, made, strict=True):
        if not reach(engine) or one["down"]:
            continue
        prefix = "" if one["namespace"] is None else f"{one['namespace']}:"
        given |= {f"{prefix}{found['id']}" for found in one["corpus"][: reach(engine)]}
        bound = one["capabilities"]["retrieve"].get("maxK", MAX_HITS)
        if any("topN" in (params.get("rerank") or {}) for params in engine.asked):
            bound = min(bound, one["capabilities"].get("rerank", {}).get("maxCandidates", bound))
        assert len(one["corpus"]) < reach(engine) or reach(engine) == min(bound, MAX_HITS)
    assert set(served) == given


@QUICK
@given(made=st.lists(ENGINES, min_size=1, max_size=3), request=REQUESTS, sizes=st.lists(st.integers(1, 50), min_size=1))
def test_pages_concatenate_to_the_whole(made: list[Json], request: Json, sizes: list[int]) -> None:
    """However large the pages are, nothing comes twice; without a floor nothing is left out, as deep as engines go."""

    identity = request.get("x_gateway", {}).get("identity", "id")
    if identity == "content":
        request = {**request, "includeText": True}

    async def story() -> None:
        federation = Federation(made)
        served: list[str] = []
        cursor: Json = {}
        for page in range(200):
            step = {**request, "k": sizes[page % len(sizes)], **cursor}
            if "rerank" in request or "candidateK" in request:
                step["k"] = min(step["k"], 50)
            try:
                result = await federation.ask(**step)
            except RcpError as error:
                check_refusal(error, served)
                return
            check_result(result, step, federation.engines)
            served += [mark(hit, identity) for hit in result["hits"]]
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
        else:
            raise AssertionError("it never ends")
        assert len(served) == len(set(served))
        if "minScore" not in request and identity == "id":
            check_whole(federation, made, served)

    virtually(story())


@QUICK
@given(made=st.lists(ENGINES, min_size=1, max_size=3), request=REQUESTS, sizes=st.lists(st.integers(1, 20), min_size=2))
def test_slices_of_one_order(made: list[Json], request: Json, sizes: list[int]) -> None:
    """As long as no engine is asked again, pages are what one larger answer would have held."""
    request = {key: value for key, value in request.items() if key not in ("tokenBudget", "sessionId")}

    async def story() -> None:
        federation = Federation(made)
        try:
            pages = [await federation.ask(**{**request, "k": min(sizes[0], 3)})]
            asked = [len(engine.asked) for engine in federation.engines]
            for size in sizes[1:]:
                if "nextCursor" not in pages[-1]:
                    break
                more = await federation.ask(**{**request, "k": size, "cursor": pages[-1]["nextCursor"]})
                if asked != [len(engine.asked) for engine in federation.engines]:
                    break
                pages.append(more)
            whole = await federation.ask(**{**request, "k": 3})
            again = await federation.ask(**{**request, "k": 3})
        except RcpError as error:
            refusal(error)
            return
        found = [hit for page in pages for hit in page["hits"]]
        assert found[:3] == whole["hits"][: len(found)]
        assert timeless(whole) == timeless(again)

    virtually(story())


@QUICK
@given(made=st.lists(ENGINES, min_size=1, max_size=3), requests=st.lists(REQUESTS, min_size=2, max_size=5))
def test_a_session_is_never_answered_twice(made: list[Json], requests: list[Json]) -> None:
    """Whatever is asked in one session under one identity policy, no hit comes twice."""

    async def story() -> None:
        federation = Federation(made)
        served: list[str] = []
        for number, request in enumerate(requests):
            own = {key: value for key, value in request.get("x_gateway", {}).items() if key != "identity"}
            step = {**request, "query": f"q{number}", "sessionId": "s", "x_gateway": own}
            try:
                result = await federation.ask(**step)
            except RcpError as error:
                refusal(error)
                continue
            check_result(result, step, federation.engines)
            served += [f"{hit['id']}" for hit in result["hits"]]
        assert len(served) == len(set(served))

    virtually(story())
