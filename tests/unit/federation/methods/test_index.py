"""`index/add` and `index/delete`: whose index is meant, ids with and without their namespace, and what is sent once."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.errors import (
    BackendUnavailable,
    BadStatus,
    CapabilityMissing,
    ConnectFailed,
    DeadlineExceeded,
    ForeignError,
    InvalidParams,
    LegTimeout,
    OptionUnsupported,
    Refused,
)
from tests.support.answering import asked, error_of, sent, told
from tests.support.fake_engine import FakeEngine, Json


def library(name: str, answer: Any = None, *, offer: Any = None, **more: Any) -> FakeEngine:
    """An engine with an index that may be written to: it makes up ids, and says how many it was told to delete."""
    fresh = itertools.count(1)

    async def keep(params: Mapping[str, Any]) -> Json:
        if "ids" in params:
            return {"deleted": len(params["ids"])}
        return {"ids": [document.get("id", f"{name}-{next(fresh)}") for document in params["documents"]], "chunks": 2}

    offer = {"writable": True} if offer is None else offer
    return FakeEngine(name, keep if answer is None else answer, capabilities={"index": offer}, **more)


def texts(*ids: Any) -> list[Json]:
    """Documents with these ids; None: without one."""
    return [{"text": "t"} if document_id is None else {"id": document_id, "text": "t"} for document_id in ids]


def to(engine: str) -> Json:
    """The param that names an engine."""
    return {"x-gateway": {"engine": engine}}


async def add(*engines: FakeEngine, documents: Any, **more: Any) -> Json:
    """The result of adding documents."""
    call = {key: more.pop(key) for key in ("meta", "seconds") if key in more}
    return await asked("index/add", {"documents": documents, **more}, *engines, **call)


async def test_the_single_writable_engine_is_meant() -> None:
    """Where there is no choice, nobody has to make one; params and unknown fields go through."""
    reader = library("r", offer={"writable": False})
    writer = library("w", offer={"writable": True, "chunking": True, "contextual": True})
    params = {"documents": [{"text": "t", "meta": {"a": 1}, "x": 1}], "chunk": True, "contextual": True, "other": 1}
    result = await asked("index/add", params, reader, FakeEngine("n"), writer)
    assert (result["ids"], result["chunks"]) == (["w-1"], 2)
    assert sent(writer) == params
    assert told(result) == {"r": "unfit", "n": "capability", "w": "ok"}
    assert reader.asked == []


async def test_an_index_that_states_nothing_may_be_written_to() -> None:
    """`{}` counts as present."""
    assert (await add(library("w", offer={}), documents=texts("x")))["ids"] == ["x"]


async def test_among_several_the_default_writer_is_meant() -> None:
    """The highest priority, then the smallest id; the result says so. A call may name another one."""
    a, b, c = library("a"), library("b", priority=1), library("c", priority=1)
    result = await add(a, b, c, documents=texts("x", None))
    assert told(result) == {"a": "not_needed", "b": "ok", "c": "not_needed"}
    assert result["_meta"]["x-gateway"]["writer"] == "b"
    assert result["usage"]["notes"] == [
        "written to the default writer 'b'; set 'x-gateway.engine' to choose another engine"
    ]
    named = await add(a, b, documents=texts("x"), **to("a"))
    assert told(named) == {"a": "ok", "b": "not_needed"}
    assert "usage" not in named
    narrowed = await add(a, b, documents=texts("x"), **{"x-gateway": {"engines": ["a"]}})
    assert told(narrowed) == {"a": "ok", "b": "not_selected"}


async def test_the_registry_may_name_the_default_writer() -> None:
    """The flag wins over any priority, and whoever has it and is read-only is none."""
    a, b = library("a", priority=9), library("b", writer=True)
    readonly = library("c", offer={"writable": False}, writer=True, priority=10)
    assert told(await add(a, b, readonly, documents=texts("x")))["b"] == "ok"


async def test_nothing_is_written_elsewhere_while_the_named_writer_is_unknown() -> None:
    """Documents would otherwise be scattered by the order in which engines come up. -32010, to be retried."""
    a, b = library("a"), library("b", writer=True, reached=False)
    for method, params in (("index/add", {"documents": texts("x")}), ("index/delete", {"ids": ["x"]})):
        error = await error_of(method, params, a, b)
        assert isinstance(error, BackendUnavailable)
        assert error.data["retryable"] is True
        assert "'b', the default writer" in error.message
    assert a.asked == []
    assert (await add(a, b, documents=texts("x"), **to("a")))["ids"] == ["x"]


async def test_a_deletion_goes_to_all_that_may_hold_the_document() -> None:
    """Counts are added up. An id without a namespace is never taken for that of an engine with one, unless this engine
    is the default writer, which was given such ids."""
    a, b, d = library("a"), library("b"), library("d", idNamespace="d")
    assert (await asked("index/delete", {"ids": ["x", "y"]}, a, b, d))["deleted"] == 4
    assert (sent(a), sent(b), d.asked) == ({"ids": ["x", "y"]}, {"ids": ["x", "y"]}, [])
    e = library("e", idNamespace="e", writer=True)
    assert (await add(a, e, documents=texts("x")))["ids"] == ["e:x"]
    assert (await asked("index/delete", {"ids": ["x"]}, a, d, e))["deleted"] == 2
    assert sent(e, 1) == {"ids": ["x"]}
    assert (await asked("index/delete", {"ids": ["x"], **to("a")}, a, e))["deleted"] == 1


async def test_a_deletion_that_one_engine_did_not_make_is_an_error() -> None:
    """The document may still be there. It names who did it, and may be sent again."""
    a, b = library("a"), library("b", ConnectFailed("x"))
    error = await error_of("index/delete", {"ids": ["x"]}, a, b)
    assert isinstance(error, ForeignError)
    assert error.code == BackendUnavailable.code
    assert error.data["done"] == {"a": {"deleted": 1}}
    assert error.data["retryable"] is True


@pytest.mark.parametrize(
    ("name", "error_type", "says"),
    [
        ("zz", InvalidParams, "not configured"),
        ("r", InvalidParams, "not writable"),
        ("n", InvalidParams, "does not advertise index"),
        ("d", BackendUnavailable, "not been reached"),
    ],
)
async def test_an_engine_that_cannot_be_meant(name: str, error_type: type, says: str) -> None:
    """Unknown, read-only, without an index, never reached."""
    engines = [library("w"), library("r", offer={"writable": False}), FakeEngine("n"), FakeEngine("d", reached=False)]
    error = await error_of("index/add", {"documents": texts("x"), **to(name)}, *engines)
    assert isinstance(error, error_type)
    assert says in error.message
    assert engines[0].asked == []


async def test_nobody_can_be_written_to() -> None:
    """-32003 if no engine's index is writable."""
    error = await error_of("index/add", {"documents": texts("x")}, library("r", offer={"writable": False}))
    assert isinstance(error, CapabilityMissing)


async def test_a_document_goes_to_the_engine_its_id_names() -> None:
    """Without its prefix; the ids come back in the caller's order, each with its prefix."""
    docs, code = library("docs", idNamespace="d"), library("code", idNamespace="c")
    result = await add(docs, code, documents=texts("c:1", "d:2", "c:3"))
    assert result["ids"] == ["c:1", "d:2", "c:3"]
    assert result["chunks"] == 4
    assert sent(docs) == {"documents": texts("2")}
    assert sent(code) == {"documents": texts("1", "3")}
    assert told(result) == {"docs": "ok", "code": "ok"}


async def test_ids_that_an_engine_makes_up_get_its_prefix() -> None:
    """So that what was added can be deleted by the id that came back; an id without one goes to who is meant."""
    docs, code = library("docs", idNamespace="d"), library("code", idNamespace="c")
    result = await add(docs, code, documents=texts(None, "d:2", "9"), **to("docs"))
    assert result["ids"] == ["d:docs-1", "d:2", "d:9"]
    deleted = await asked("index/delete", {"ids": result["ids"]}, docs, code)
    assert deleted["deleted"] == 3
    assert sent(docs, 1) == {"ids": ["docs-1", "2", "9"]}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a:x", "a:y", "b:x", "b:y:z"]), min_size=1, max_size=12))
def test_ids_keep_their_order_wherever_they_go(ids: list[str]) -> None:
    """However documents are dealt out, each id comes back in its place, as the caller knows it."""

    async def story() -> None:
        engines = [library("a", idNamespace="a"), library("b", idNamespace="b"), library("c")]
        assert (await add(*engines, documents=texts(*ids)))["ids"] == ids
        assert engines[2].asked == []
        for engine, prefix in zip(engines[:2], ("a:", "b:"), strict=True):
            known = [document["id"] for params in engine.asked for document in params["documents"]]
            assert known == [document_id[2:] for document_id in ids if document_id.startswith(prefix)]

    asyncio.run(story())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a:x", "plain", "d:x", "a:", ":b", None, "7"]), max_size=12))
def test_what_is_no_prefix_is_part_of_the_id(ids: list[Any]) -> None:
    """Only a namespace of the registry, with something behind it, is one; whoever is meant gets the others whole."""

    async def story() -> None:
        engine = library("e", idNamespace="a")
        result = await add(engine, library("other"), documents=texts(*ids), **to("e"))
        for sent_id, came in zip(ids, result["ids"], strict=True):
            assert (
                came.startswith("a:e-") if sent_id is None else came == f"a:{f'{sent_id}'.removeprefix('a:') or 'a:'}"
            )

    asyncio.run(story())


async def test_an_id_of_another_engine_than_the_one_that_is_meant() -> None:
    """-32602 naming the document, and nothing is written anywhere; nor is it to an engine that may not be."""
    docs, code = library("docs", idNamespace="d"), library("code")
    error = await error_of("index/add", {"documents": texts("x", "d:2"), **to("code")}, docs, code)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "documents[1].id"
    readonly = library("docs", idNamespace="d", offer={"writable": False})
    error = await error_of("index/delete", {"ids": ["d:2"]}, readonly, code)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "ids[0]"
    assert docs.asked == code.asked == readonly.asked == []


async def test_a_namespace_of_several_engines() -> None:
    """A deletion goes to each of them, an addition to the default writer among them."""
    one, two = library("one", idNamespace="d"), library("two", idNamespace="d")
    deleted = await asked("index/delete", {"ids": ["d:1", "d:2"]}, one, two)
    assert deleted["deleted"] == 4
    assert sent(one) == sent(two) == {"ids": ["1", "2"]}
    assert (await add(one, two, documents=texts("d:1"), **to("two")))["ids"] == ["d:1"]
    assert (await add(one, two, documents=texts("d:1")))["ids"] == ["d:1"]
    assert (len(one.asked), len(two.asked)) == (2, 2)


@pytest.mark.parametrize(
    ("ids", "meta", "again"),
    [(("a", "b"), None, True), (("a", None), None, False), (("a", None), {"idempotencyKey": "k"}, True)],
)
async def test_what_may_be_sent_twice(ids: Any, meta: Any, again: bool) -> None:
    """Only if every document has its id, or the call its key; a deletion always may."""
    engine = library("w")
    await add(engine, documents=texts(*ids), meta=meta)
    assert engine.idempotent == [again]
    if meta:
        assert engine.asked[0]["_meta"]["idempotencyKey"] == "k"
    await asked("index/delete", {"ids": ["a"]}, engine)
    assert engine.idempotent == [again, True]


@pytest.mark.parametrize(
    "fault", [ConnectFailed("x"), BadStatus("HTTP 503"), LegTimeout("x"), Refused("x", code=-32010)], ids=repr
)
async def test_nobody_is_written_to_in_anothers_place(fault: Any) -> None:
    """There is no fail-over: another index is another index."""
    other = library("other")
    error = await error_of("index/add", {"documents": texts("x"), **to("w")}, library("w", fault), other)
    assert isinstance(error, BackendUnavailable)
    assert "w: " in error.data["detail"]
    assert other.asked == []


async def test_a_call_carried_out_in_part_says_what_was() -> None:
    """One of two engines fails: an error, with what the other one answered, and not to be sent again as it is."""
    docs, code = library("docs", idNamespace="d"), library("code", Refused("-32016 busy", code=-32016), idNamespace="c")
    error = await error_of("index/add", {"documents": texts("c:1", "d:2")}, docs, code)
    assert error.code == -32016
    assert error.data["done"] == {"docs": {"ids": ["2"], "chunks": 2}}
    assert error.data["retryable"] is False
    assert "docs succeeded, code failed" in error.message


@pytest.mark.parametrize("answer", [{}, {"ids": ["a", "b"]}, {"ids": [None]}, {"ids": "a"}, {"ids": [True]}])
async def test_an_addition_without_its_ids_is_none(answer: Json) -> None:
    """The engine failed: nobody knows what it did."""
    error = await error_of("index/add", {"documents": texts("x")}, library("w", answer))
    assert isinstance(error, BackendUnavailable)


@pytest.mark.parametrize("answer", [{}, {"deleted": -1}, {"deleted": True}, {"deleted": 1.0}])
async def test_a_deletion_without_its_count_is_none(answer: Json) -> None:
    """The engine failed."""
    assert isinstance(await error_of("index/delete", {"ids": ["x"]}, library("w", answer)), BackendUnavailable)


@pytest.mark.parametrize(("param", "flag"), [("chunk", "chunking"), ("contextual", "contextual")])
async def test_how_to_index_must_be_offered(param: str, flag: str) -> None:
    """-32005 naming the option if the engine that is meant does not advertise it; `false` asks for nothing."""
    plain, able = library("w"), library("w", offer={"writable": True, flag: True})
    error = await error_of("index/add", {"documents": texts("x"), param: True}, plain)
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == param
    assert plain.asked == []
    await add(plain, documents=texts("x"), **{param: False})
    await add(able, documents=texts("x"), **{param: True})
    assert able.asked[0][param] is True


async def test_nothing_to_do_is_done() -> None:
    """Empty lists are well formed; the engine that is meant says so itself."""
    engine = library("w")
    assert (await add(engine, documents=[]))["ids"] == []
    assert (await asked("index/delete", {"ids": []}, engine))["deleted"] == 0


async def test_no_time_is_left() -> None:
    """-32014 before anything is sent."""
    engine = library("w")
    error = await error_of("index/add", {"documents": texts("x")}, engine, meta={"deadlineMs": 1})
    assert isinstance(error, DeadlineExceeded)
    assert engine.asked == []


async def test_writing_goes_no_further_than_it_may() -> None:
    """Depth used up: -32010."""
    error = await error_of("index/add", {"documents": texts("x")}, library("w"), meta={"federation": {"depth": 0}})
    assert isinstance(error, BackendUnavailable)


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("index/add", {}, "documents"),
        ("index/add", {"documents": {"text": "t"}}, "documents"),
        ("index/add", {"documents": ["t"]}, "documents[0]"),
        ("index/add", {"documents": [{"text": "t"}, {"id": "x"}]}, "documents[1].text"),
        ("index/add", {"documents": [{"text": 7}]}, "documents[0].text"),
        ("index/add", {"documents": [{"text": "t", "id": ""}]}, "documents[0].id"),
        ("index/add", {"documents": [{"text": "t", "id": True}]}, "documents[0].id"),
        ("index/add", {"documents": [{"text": "t", "meta": []}]}, "documents[0].meta"),
        ("index/add", {"documents": [], "chunk": 1}, "chunk"),
        ("index/add", {"documents": [], "contextual": "yes"}, "contextual"),
        ("index/add", {"documents": [], "x-gateway": {"engine": 7}}, "x-gateway.engine"),
        ("index/delete", {}, "ids"),
        ("index/delete", {"ids": "x"}, "ids"),
        ("index/delete", {"ids": ["x", None]}, "ids[1]"),
    ],
)
async def test_malformed_params_are_named(method: str, params: Json, field: str) -> None:
    """-32602 with the field, before anybody is asked."""
    engine = library("w")
    error = await error_of(method, params, engine)
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == field
    assert engine.asked == []


async def test_a_document_without_a_real_id_has_none() -> None:
    """null counts as absent: the engine makes one up, and the call is not sent twice."""
    engine = library("w")
    assert (await add(engine, documents=[{"id": None, "text": "t"}]))["ids"] == ["w-1"]
    assert engine.idempotent == [False]
