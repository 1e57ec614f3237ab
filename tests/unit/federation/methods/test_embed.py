"""`embed`, `embed/sparse`, `embed/multi`: one space, its fail-over, batches in parts, encodings."""

import asyncio
import base64
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import (
    BackendUnavailable,
    BadStatus,
    ConnectFailed,
    InvalidParams,
    OptionUnsupported,
    Refused,
)
from app.protocol.method_names import GATES
from tests.support.answering import asked, error_of, sent, told
from tests.support.fake_engine import FakeEngine, Json, never

METHODS = {"embed": "vectors", "embed/sparse": "sparse", "embed/multi": "matrices"}
each_method = pytest.mark.parametrize("method", METHODS)


def vector(text: str) -> Any:
    """What the engines of these tests make of a text: something that tells it."""
    return [float(len(text)), float(sum(map(ord, text)))]


def entry(method: str, text: str) -> Any:
    """The entry of a result for a text."""
    if method == "embed/sparse":
        return {"indices": [len(text)], "values": vector(text)[:1]}
    return vector(text) if method == "embed" else [vector(text)]


def embedder(
    name: str, method: str = "embed", answer: Any = None, *, offer: Json | None = None, **more: Any
) -> FakeEngine:
    """An engine that embeds; `offer` is what it says of it."""

    async def embeds(params: Mapping[str, Any]) -> Json:
        assert params["inputs"] == params["texts"]
        return {METHODS[method]: [entry(method, text) for text in params["inputs"]], "engine": name}

    said = {"identity": "m", "dimension": 2, **(offer or {})}
    return FakeEngine(name, embeds if answer is None else answer, capabilities={GATES[method]: said}, **more)


@each_method
@pytest.mark.parametrize("name", ["inputs", "texts"])
async def test_the_first_engine_embeds(method: str, name: str) -> None:
    """The first by priority alone; both names are taken and both are sent; unknown fields go through both ways."""
    first, second = embedder("a", method), embedder("b", method)
    result = await asked(method, {name: ["x", "yy"], "kind": "query", "other": 1, "gone": None}, first, second)
    assert result[METHODS[method]] == [entry(method, "x"), entry(method, "yy")]
    assert result["engine"] == "a"
    assert sent(first) == {"inputs": ["x", "yy"], "texts": ["x", "yy"], "kind": "query", "other": 1}
    assert second.asked == []
    assert first.methods == [method]


@each_method
async def test_only_an_engine_of_the_same_space_takes_over(method: str) -> None:
    """The same identity and dimension: it answers in the first one's place. Any other is not even asked."""
    down = embedder("a", method, ConnectFailed("no"))
    other, wider, twin = (
        embedder("b", method, offer={"identity": "n"}),
        embedder("c", method, offer={"dimension": 3}),
        embedder("d", method),
    )
    result = await asked(method, {"inputs": ["x"]}, down, other, wider, twin)
    assert result["engine"] == "d"
    assert told(result) == {"a": "connect", "b": "unfit", "c": "unfit", "d": "ok"}
    assert result["_meta"]["degraded"] == ["a"]
    error = await error_of(method, {"inputs": ["x"]}, down, other, wider)
    assert isinstance(error, BackendUnavailable)
    assert other.asked == wider.asked == []


async def test_a_space_without_a_name_is_nobody_elses() -> None:
    """Two engines that do not say which model they use may use different ones."""
    down = embedder("a", answer=ConnectFailed("no"), offer={"identity": None})
    second = embedder("b", offer={"identity": None})
    assert isinstance(await error_of("embed", {"inputs": ["x"]}, down, second), BackendUnavailable)
    assert second.asked == []


async def test_the_space_is_that_of_the_first_that_may_be_asked() -> None:
    """A call that names its engines is answered in the space of the first of them."""
    first, second = embedder("a"), embedder("b", offer={"identity": "n"})
    result = await asked("embed", {"inputs": ["x"], "x-gateway": {"engines": ["b"]}}, first, second)
    assert result["engine"] == "b"
    assert "x-gateway" not in second.asked[0]


@given(texts=st.lists(st.text(max_size=4), max_size=40), limit=st.integers(1, 12))
def test_a_batch_in_parts_is_the_batch(texts: list[str], limit: int) -> None:
    """However a batch is cut, every input has its vector, in order, and no part is longer than the engine takes."""

    async def story() -> None:
        engine = embedder("a", offer={"batchLimit": limit})
        result = await asked("embed", {"inputs": texts}, engine)
        assert result["vectors"] == [vector(text) for text in texts]
        assert all(len(params["inputs"]) <= limit for params in engine.asked)
        assert len(engine.asked) == max(1, -(-len(texts) // limit))

    asyncio.run(story())


async def test_parts_are_under_way_at_the_same_time_and_may_end_in_any_order() -> None:
    """Nobody waits for the part before; answers are put back in the order of the inputs."""
    waiting: list[str] = []
    all_there = asyncio.Event()

    async def late_first(params: Mapping[str, Any]) -> Json:
        waiting.append(params["inputs"][0])
        if len(waiting) == 3:
            all_there.set()
        await all_there.wait()
        if params["inputs"][0] == "a":
            await asyncio.sleep(0)
        return {"vectors": [vector(text) for text in params["inputs"]], "dimension": 2}

    engine = embedder("e", answer=late_first, offer={"batchLimit": 2})
    result = await asked("embed", {"inputs": ["a", "b", "cc", "d", "eee"]}, engine)
    assert result["vectors"] == [vector(text) for text in ("a", "b", "cc", "d", "eee")]
    assert result["dimension"] == 2
    (said,) = result["_meta"]["x-gateway"]["engines"]
    assert said["attempts"] == 3


async def test_many_parts_do_not_storm_an_engine() -> None:
    """At most eight parts of one batch are under way at once."""
    under_way = most = 0

    async def counting(params: Mapping[str, Any]) -> Json:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return {"vectors": [[0.0] for _ in params["inputs"]]}

    engine = embedder("e", answer=counting, offer={"batchLimit": 1})
    assert len((await asked("embed", {"inputs": ["x"] * 50}, engine))["vectors"]) == 50
    assert most == 8


async def test_a_batch_in_too_many_parts_is_refused() -> None:
    """One call never becomes more than 128: -32602 with the field; an engine of the space that takes more is asked."""
    small, large = embedder("a", offer={"batchLimit": 1}), embedder("b", offer={"batchLimit": 2})
    error = await error_of("embed", {"texts": ["x"] * 129}, small)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "texts"
    assert "128" in error.message
    assert "256" in (await error_of("embed", {"texts": ["x"] * 257}, small, large)).message
    assert len((await asked("embed", {"texts": ["x"] * 128}, small))["vectors"]) == 128
    assert told(await asked("embed", {"texts": ["x"] * 129}, small, large)) == {"a": "limit", "b": "ok"}


async def test_a_part_that_fails_fails_the_engine_and_ends_the_others() -> None:
    """There is no half a batch: the whole goes to the next engine of the space, and nothing is left running."""

    async def second_fails(params: Mapping[str, Any]) -> Any:
        if params["inputs"] == ["b"]:
            raise BadStatus("HTTP 500")
        return await never(params)

    broken = embedder("a", answer=second_fails, offer={"batchLimit": 1})
    twin = embedder("z")
    result = await asked("embed", {"inputs": ["a", "b", "c"]}, broken, twin)
    assert result["vectors"] == [vector(text) for text in "abc"]
    assert told(result) == {"a": "http_status", "z": "ok"}
    assert sorted(broken.ended) == ["cancelled", "cancelled", "failed"]


async def test_parts_of_different_kinds_are_no_batch() -> None:
    """An engine that answers its parts in different dimensions or encodings failed."""
    changing = embedder(
        "a",
        answer=[{"vectors": [[1.0]], "dimension": 1}, {"vectors": [[1.0, 2.0]], "dimension": 2}],
        offer={"batchLimit": 1},
    )
    error = await error_of("embed", {"inputs": ["a", "b"]}, changing)
    assert isinstance(error, BackendUnavailable)
    assert "dimension" in error.data["detail"]


def packed(*numbers: float) -> str:
    """Numbers as f32-base64."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


async def test_an_encoding_goes_to_who_offers_it() -> None:
    """Passed through and back; without the dimension in the answer the advertised one is told."""
    answer = {"vectors": [packed(1, 2)], "encoding": "f32-base64"}
    engine = embedder("a", answer=answer, offer={"encodings": ["json", "f32-base64"]})
    result = await asked("embed", {"inputs": ["x"], "encoding": "f32-base64"}, engine)
    assert engine.asked[0]["encoding"] == "f32-base64"
    assert (result["vectors"], result["encoding"], result["dimension"]) == ([packed(1, 2)], "f32-base64", 2)


async def test_binary_vectors_that_nobody_asked_for() -> None:
    """Who wants numbers cannot read them: the engine has failed, and another of the space is asked."""
    binary = {"vectors": [packed(1, 2)], "encoding": "f32-base64", "dimension": 2}
    offer = {"encodings": ["f32-base64", "f16-base64"]}
    for wish in ({}, {"encoding": "json"}, {"encoding": "f16-base64"}):
        error = await error_of("embed", {"inputs": ["x"], **wish}, embedder("a", answer=binary, offer=offer))
        assert "an encoding that nobody asked for" in error.data["detail"]
    result = await asked("embed", {"inputs": ["x"]}, embedder("a", answer=binary, offer=offer), embedder("b"))
    assert result["vectors"] == [vector("x")]


@pytest.mark.parametrize("encodings", [None, [], ["json"], "f32-base64"])
async def test_an_encoding_nobody_of_the_space_offers(encodings: Any) -> None:
    """-32005 naming the option; that another space has it does not help."""
    engine = embedder("a", offer={"encodings": encodings})
    other = embedder("b", offer={"identity": "n", "encodings": ["f32-base64"]})
    error = await error_of("embed", {"inputs": ["x"], "encoding": "f32-base64"}, engine, other)
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "encoding"
    assert engine.asked == other.asked == []
    twin = embedder(
        "c", answer={"vectors": [packed(1, 2)], "encoding": "f32-base64"}, offer={"encodings": ["f32-base64"]}
    )
    assert told(await asked("embed", {"inputs": ["x"], "encoding": "f32-base64"}, engine, twin))["a"] == "option"


async def test_json_is_everybodys_encoding() -> None:
    """`json` is what is answered without a word, so it need not be offered."""
    engine = embedder("a")
    assert (await asked("embed", {"inputs": ["x"], "encoding": "json"}, engine))["vectors"] == [vector("x")]
    assert engine.asked[0]["encoding"] == "json"


@pytest.mark.parametrize(
    "answer",
    [
        {"vectors": [packed(1)], "encoding": "f32-base64", "dimension": 2},
        {"vectors": [packed(1, 2, 3)], "encoding": "f32-base64", "dimension": 2},
        {"vectors": [packed(1, 2, 3)], "encoding": "f32-base64"},
        {"vectors": [packed(1, 2, 3)], "encoding": "f32-base64", "dimension": 3},
        {"vectors": [packed(1, 2)[:-1]], "encoding": "f32-base64", "dimension": 2},
        {"vectors": ["ü"], "encoding": "f32-base64", "dimension": 2},
        {"vectors": [[1, 2]], "encoding": "f32-base64", "dimension": 2},
        {"vectors": [packed(1, 2)], "encoding": "f32-base64", "dimension": True},
        {"vectors": []},
        {"vectors": [[1], [2]]},
        {"vectors": [1]},
        {"vectors": None},
        {},
    ],
)
async def test_vectors_that_are_none_fail_their_engine(answer: Json) -> None:
    """A binary vector of the wrong length, or a result without a vector for each input, is no answer at all."""
    engine = embedder("a", answer=answer, offer={"encodings": ["f32-base64"]})
    error = await error_of("embed", {"inputs": ["x"], "encoding": "f32-base64"}, engine)
    assert isinstance(error, BackendUnavailable)
    assert "protocol" in error.data["detail"]
    right = {"vectors": [packed(1, 2)], "encoding": "f32-base64", "dimension": 2}
    twin = embedder("b", answer=right, offer={"encodings": ["f32-base64"]})
    result = await asked("embed", {"inputs": ["x"], "encoding": "f32-base64"}, engine, twin)
    assert told(result) == {"a": "protocol", "b": "ok"}


async def test_an_encoding_we_do_not_know_is_handed_through() -> None:
    """An engine may offer one of its own; what we cannot measure we do not judge."""
    answer = {"vectors": ["AA=="], "encoding": "int8-base64"}
    engine = embedder("a", answer=answer, offer={"encodings": ["int8-base64"]})
    result = await asked("embed", {"inputs": ["x"], "encoding": "int8-base64"}, engine)
    assert (result["vectors"], result["encoding"]) == (["AA=="], "int8-base64")


IMAGE = {"type": "image", "mimeType": "image/png", "data": "AA=="}


async def test_blocks_go_to_who_takes_them() -> None:
    """A block outside the advertised modalities is -32005; without a word an engine takes text."""
    error = await error_of("embed", {"inputs": ["x", IMAGE]}, embedder("a"))
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "inputs"
    sees = embedder("a", answer={"vectors": [[1], [2]]}, offer={"modalities": ["text", "image"]})
    assert len((await asked("embed", {"inputs": ["x", IMAGE]}, sees))["vectors"]) == 2


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": "x"}, "inputs"),
        ({"texts": {"a": 1}}, "texts"),
        ({"inputs": ["x"], "texts": ["y"]}, "texts"),
        ({"inputs": ["x", 7]}, "inputs[1]"),
        ({"inputs": [{"type": "image"}]}, "inputs[0].mimeType"),
        ({"inputs": ["x"], "kind": "passage"}, "kind"),
        ({"inputs": ["x"], "encoding": 7}, "encoding"),
        ({"inputs": ["x"], "x-gateway": {"engines": []}}, "x-gateway.engines"),
        ({"inputs": ["x"], "x-gateway": {"engines": ["zz"]}}, "x-gateway.engines"),
    ],
)
async def test_malformed_params_are_named(params: Json, field: str) -> None:
    """-32602 with the field, before anybody is asked."""
    engine = embedder("a")
    error = await error_of("embed", params, engine)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == field
    assert field.partition("[")[0] in error.message
    assert engine.asked == []


async def test_a_refusal_of_the_inputs_is_the_answer() -> None:
    """What one engine of the space refuses as too large is the caller's to know, with that code."""
    engine, twin = embedder("a", answer=Refused("-32013 too large", code=-32013)), embedder("b")
    assert (await error_of("embed", {"inputs": ["x"]}, engine, twin)).code == -32013
    assert twin.asked == []
