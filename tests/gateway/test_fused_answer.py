"""What a caller reads in a fused answer: identity, order, scores, origin, and what the gateway honours itself."""

from typing import Any

import pytest

from app.telemetry import overlap
from tests.support.running_gateway import entry, running, until
from tests.support.scripted_engine import hit, hits


def ids(result: dict[str, Any]) -> list[Any]:
    return [found["id"] for found in result["hits"]]


async def test_agreement_wins_and_every_hit_says_where_it_is_from(engines: Any) -> None:
    """A document that two engines return comes first; each hit carries its origin, ranks and scores."""
    one = await engines(results=[hit("a", 9.0), hit("both", 8.0)])
    two = await engines(results=[hit("both", 0.5), hit("c", 0.4)])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["both", "a", "c"]
    meta = result["hits"][0]["meta"]
    assert meta["engines"] == [{"id": "one", "rank": 2, "score": 8.0}, {"id": "two", "rank": 1, "score": 0.5}]
    assert meta["engine"] == "two"
    assert meta["engineRank"] == 1
    assert meta["engineScore"] == 0.5
    assert meta["fusedScore"] == pytest.approx(1 / 62 + 1 / 61)


async def test_scores_are_shares_of_the_maximum_and_descend(engines: Any) -> None:
    """Ranked first by everyone that answered is exactly 1.0, also with an engine down; scores never rise (B19, B25)."""
    made = [await engines(results=[hit("top"), hit(f"own{index}")]) for index in range(3)]
    await made[2].stop()
    entries = [entry(f"e{index}", engine) for index, engine in enumerate(made[:2])]
    async with running([*entries, entry("down", made[2].url)], reach=False) as gateway:
        reachable = [engine for engine in gateway.state.engines.engines if engine.id != "down"]
        await until(lambda: all(engine.up for engine in reachable))
        result = await gateway.retrieve()
    scores = [found["score"] for found in result["hits"]]
    assert scores[0] == 1.0
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


async def test_a_doubled_id_counts_once_per_engine(engines: Any) -> None:
    """Duplicates inside one list are removed first and ranks close up (B01)."""
    one = await engines(results=[hit("x"), hit("x"), hit("y")])
    two = await engines(results=[hit("y")])
    async with running([entry("A", one), entry("B", two)]) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y", "x"]
    assert [round(found["meta"]["fusedScore"], 6) for found in result["hits"]] == [0.032522, 0.016393]


async def test_identity_is_the_stringified_id(engines: Any) -> None:
    """1 and "1" are one document, boolean ids are none (B20)."""
    one = await engines(results=[hit(1, text="the longer text of the two"), hit(True)])
    two = await engines(results=[hit("1", text="short"), hit(None)])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == [1]
    assert [note.split(":")[0] for note in result["usage"]["notes"]] == ["one", "two"]


async def test_a_namespace_keeps_unrelated_corpora_apart(engines: Any) -> None:
    """`idNamespace` prefixes an engine's ids, so equal numbers of two corpora never merge (B21)."""
    one, two = await engines(results=hits(7)), await engines(results=hits(7))
    async with running([entry("one", one, idNamespace="docs"), entry("two", two)]) as gateway:
        result = await gateway.retrieve()
    assert set(map(str, ids(result))) == {"docs:7", "7"}


async def test_an_id_collision_is_counted(engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A same id with clearly different texts from two engines is counted in every sampled answer."""
    monkeypatch.setattr(overlap, "LOOK_SECONDS", 0.0)  # every answer is sampled
    one = await engines(results=[hit("7", text="the cat sat on the mat and purred all day long")])
    two = await engines(results=[hit("7", text="quarterly revenue grew by nine percent in Europe")])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        await gateway.retrieve()
        await gateway.retrieve()
        assert await gateway.metric("rcp_gateway_id_collisions_total") == 2


async def test_the_richest_body_is_kept_and_meta_merged(engines: Any) -> None:
    """Of two copies the longer text stays; meta of both is there; unknown fields of the kept copy come through."""
    one = await engines(results=[hit("d", text="long long text", meta={"a": 1, "b": 1}, mystery={"deep": [1, None]})])
    two = await engines(results=[hit("d", text="short", meta={"b": 2, "c": 3})])
    async with running([entry("one", one), entry("two", two)]) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    assert found["text"] == "long long text"
    assert found["mystery"] == {"deep": [1, None]}
    assert {key: found["meta"][key] for key in "abc"} == {"a": 1, "b": 1, "c": 3}


async def test_weight_zero_adds_nothing(engines: Any) -> None:
    """Hits of an engine with weight 0 come last with score 0; 4:1 and 1:4 order differently (B07)."""
    one, two = await engines(results=hits("a", "b")), await engines(results=hits("c", "d"))
    async with running([entry("one", one, weight=1.0), entry("two", two, weight=0)]) as gateway:
        result = await gateway.retrieve()
        assert ids(result)[:2] == ["a", "b"]
        assert result["hits"][2]["score"] == 0
        first = await gateway.retrieve(fusion={"weights": {"one": 4, "two": 1}})
        second = await gateway.retrieve(fusion={"weights": {"one": 1, "two": 4}})
        error = await gateway.error("retrieve", {"query": "q", "fusion": {"weights": {"nobody": 1}}})
    assert ids(first) == ["a", "b", "c", "d"]
    assert ids(second) == ["c", "d", "a", "b"]
    assert error["code"] == -32602
    assert error["data"]["field"] == "fusion.weights.nobody"


async def test_a_bad_confidence_counts_as_missing(engines: Any) -> None:
    """A confidence outside [0,1] or of another type is taken as missing, with a note (decision 7)."""
    one = await engines(results=[hit("a", confidence=7), hit("b", confidence=0.4)])
    async with running([entry("one", one)]) as gateway:
        result = await gateway.retrieve()
    by_id = {found["id"]: found for found in result["hits"]}
    assert "confidence" not in by_id["a"]
    assert by_id["b"]["confidence"] == 0.4
    assert "one: 1 confidence" in result["usage"]["notes"][0]


async def test_the_answer_does_not_depend_on_the_registry_order(engines: Any) -> None:
    """The same engines in any order give the same answer."""
    made = {name: await engines(results=hits(*words)) for name, words in {"x": "abc", "y": "bcd", "z": "cde"}.items()}
    answers = []
    for order in ("xyz", "zyx", "yxz"):
        async with running([entry(name, made[name]) for name in order]) as gateway:
            answers.append((await gateway.retrieve())["hits"])
    assert answers[0] == answers[1] == answers[2]


async def test_never_more_than_k_and_k_is_clamped(engines: Any) -> None:
    """k is a bound, and one beyond `maxK` is clamped, not refused."""
    engine = await engines(results=hits(*range(60)), capabilities={"retrieve": {"maxK": 50}})
    async with running([entry("e", engine)]) as gateway:
        assert len((await gateway.retrieve(k=3))["hits"]) == 3
        assert len((await gateway.retrieve(k=100_000))["hits"]) == 50


async def test_min_score_is_in_our_scale_and_stays_here(engines: Any) -> None:
    """`minScore` cuts the fused score and is never forwarded (decision 4)."""
    one, two = await engines(results=hits("a", "b")), await engines(results=hits("a", "c"))
    async with running([entry("one", one), entry("two", two)]) as gateway:
        result = await gateway.retrieve(minScore=0.9)
    assert ids(result) == ["a"]
    assert "minScore" not in one.requests()[0].params


async def test_a_token_budget_packs_whole_hits(engines: Any) -> None:
    """`tokenBudget` takes whole hits until the next would not fit, at least one, and reports `usage.tokens`."""
    engine = await engines(results=[hit(index, 1 - index / 10, text="x" * 40) for index in range(5)])
    async with running([entry("e", engine)]) as gateway:
        two = await gateway.retrieve(tokenBudget=25)
        one = await gateway.retrieve(tokenBudget=1)
    assert len(two["hits"]) == 2
    assert two["usage"]["tokens"] == 20
    assert len(one["hits"]) == 1
    assert one["usage"]["tokens"] == 10
    assert "tokenBudget" not in engine.requests()[0].params


async def test_text_can_be_left_out(engines: Any) -> None:
    """`includeText: false` holds for the answer."""
    engine = await engines()
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.retrieve(includeText=False)
    assert all("text" not in found for found in result["hits"])


async def test_convex_needs_a_floor_from_everyone(engines: Any) -> None:
    """Convex falls back to RRF with a note unless all that take part advertise `scoreFloor`."""
    floored = {"retrieve": {"maxK": 50, "scoreFloor": 0}}
    one, two = await engines(capabilities=floored), await engines()
    async with running([entry("one", one), entry("two", two)]) as gateway:
        mixed = await gateway.retrieve(fusion={"method": "convex"})
        alone = await gateway.retrieve(**{"fusion": {"method": "convex"}, "x-gateway": {"engines": ["one"]}})
    assert any("convex" in note for note in mixed["usage"]["notes"])
    assert "notes" not in alone["usage"]
