"""Answers of real engines that are almost JSON: the sound hits survive, the odd value is left out with a note."""

import json
from typing import Any

import pytest

from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import Asked, Http

SOUND = b'{"id":"sound","score":0.5,"text":"fine"}'
UNSOUND = "e: the answer was not sound JSON: "
MALFORMED = "e: 1 malformed hit(s) dropped (a hit needs a usable id and a numeric score)"


def answering(*hits: bytes, before: bytes = b"", result: bytes = b"") -> Any:
    """A `retrieve` answer with these hits, byte by byte as written."""

    async def answer(asked: Asked) -> Http:
        hits_written = b",".join(hits)
        return Http(
            200, b'%b{"jsonrpc":"2.0","id":%d,"result":{%b"hits":[%b]}}' % (before, asked.id, result, hits_written)
        )

    return answer


async def served(engine: Any, script: Any, **wishes: Any) -> dict[str, Any]:
    """The answer of a gateway in front of this one engine."""
    engine.answers["retrieve"] = script
    async with running([entry("e", engine, **wishes)]) as gateway:
        answer: dict[str, Any] = await gateway.retrieve()
    return answer


def texts(answer: dict[str, Any]) -> dict[Any, Any]:
    return {hit["id"]: hit.get("text") for hit in answer["hits"]}


@pytest.mark.parametrize("client", ["http", "httpx"])
@pytest.mark.parametrize(
    ("odd", "text", "note"),
    [
        (b'{"id":"x","score":1,"text":"a\\ud800b"}', "a\ufffdb", "1 text(s) with broken characters replaced"),
        (b'{"id":"x","score":1,"text":"a\\udc00"}', "a\ufffd", "1 text(s) with broken characters replaced"),
        (b'{"id":"x","score":1,"text":"a\xed\xa0\x80b"}', "a\ufffd\ufffd\ufffdb", "1 text(s) with broken"),
        (b'{"id":"x","score":1,"text":"caf\xe9"}', "caf\ufffd", "1 text(s) with broken characters replaced"),
        (b'{"id":"x","score":1,"text":"a\x01b\nc"}', "a\x01b\nc", "control characters or a byte order mark"),
        (b'{"id":"x","score":1,"text":"t","confidence":NaN}', "t", "1 number(s) that JSON cannot say left out"),
        (b'{"id":"x","score":1,"text":"t","meta":{"a":[1,-Infinity],"b":1e400}}', "t", "2 number(s) that JSON"),
        (
            b'{"id":"x","score":1,"text":"t","meta":{"deep":' + b"[" * 1500 + b"]" * 1500 + b"}}",
            "t",
            "1 part(s) nested too deep cut off",
        ),
    ],
)
async def test_odd_value_costs_itself_alone(engine: Any, odd: bytes, text: str, note: str, client: str) -> None:
    """The hit is served without it, all others are untouched, and the note says what was done."""
    answer = await served(engine, answering(odd, SOUND), client=client)
    assert texts(answer) == {"x": text, "sound": "fine"}
    assert any(line.startswith(UNSOUND + note) for line in answer["usage"]["notes"]), answer["usage"]
    assert "degraded" not in answer.get("_meta", {})
    (odd_hit,) = [hit for hit in answer["hits"] if hit["id"] == "x"]
    assert "confidence" not in odd_hit or odd_hit["confidence"] is not None


@pytest.mark.parametrize(
    "odd",
    [
        *(b'{"id":"x\\ud800","score":1}', b'{"id":"caf\xe9","score":1}', b'{"id":"x","score":NaN}'),
        *(b'{"id":NaN,"score":1}', b'{"id":"x","score":1e999}', b'{"score":1}', b'{"id":"","score":1}'),
        *(b'{"id":%b,"score":1}' % sent for sent in (b"true", b"null", b"{}", b"[1]", b"0.1234567890123456789")),
        *(b'{"id":%d,"score":1}' % number for number in (2**64, 2**100, 2**100 + 1, -(2**63) - 1, 10**400)),
    ],
)
async def test_hit_with_unreadable_id_or_score_is_dropped(engine: Any, odd: bytes) -> None:
    """With a note; it is never served under a changed id, and never taken for another."""
    answer = await served(engine, answering(odd, SOUND))
    assert texts(answer) == {"sound": "fine"}
    assert MALFORMED in answer["usage"]["notes"]


@pytest.mark.parametrize("number", ["0", "-7", "1.5", "1.0", str(2**53 + 1), str(2**63), str(2**64 - 1), str(-(2**63))])
async def test_numbers_that_are_held_exactly_are_ids(engine: Any, number: str) -> None:
    """They are served digit for digit."""
    engine.answers["retrieve"] = answering(b'{"id":%b,"score":1}' % number.encode(), SOUND)
    async with running([entry("e", engine)]) as gateway:
        response = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}})
    assert f'"id":{number},' in response.text


async def test_byte_order_mark_before_an_answer(engine: Any) -> None:
    """It is left out."""
    assert texts(await served(engine, answering(SOUND, before=b"\xef\xbb\xbf"))) == {"sound": "fine"}


async def test_engines_own_notes_stay_beside_ours(engine: Any) -> None:
    """Ours comes first, so that it is not the one beyond the limit."""
    script = answering(b'{"id":"a","score":1,"text":"\\ud800"}', result=b'"usage":{"notes":["own"]},')
    notes = (await served(engine, script))["usage"]["notes"]
    assert notes == [UNSOUND + "1 text(s) with broken characters replaced", "e: own"]


async def test_what_was_never_json_fails_the_engine(engine: Any) -> None:
    """Repairing does not mean guessing."""
    engine.answers["retrieve"] = Http(200, b'{"jsonrpc":"2.0","id":2,"result":{"hits":[{"id":nan}]}}')
    async with running([entry("e", engine)]) as gateway:
        error = await gateway.error("retrieve", {"query": "q"})
    assert "protocol" in error["data"]["detail"]


@pytest.mark.parametrize("unsound", [b"\\ud800", b"\xff"])
async def test_vectors_and_other_results(engines: Any, unsound: bytes) -> None:
    """Results of other methods are repaired as well; a vector with NaN is no vector."""
    engine = await engines(capabilities={"transform": {"methods": ["rewrite"]}, "embed": {"dimension": 2}})

    async def rewritten(asked: Asked) -> Http:
        return Http(200, b'{"jsonrpc":"2.0","id":%d,"result":{"queries":["a%b"]}}' % (asked.id, unsound))

    async def embedded(asked: Asked) -> Http:
        return Http(200, b'{"jsonrpc":"2.0","id":%d,"result":{"vectors":[[0.5,NaN]]}}' % asked.id)

    engine.answers |= {"query/transform": rewritten, "embed": embedded}
    async with running([entry("e", engine)]) as gateway:
        result = await gateway.result("query/transform", {"query": "q", "method": "rewrite"})
        error = await gateway.error("embed", {"inputs": ["q"]})
    assert result["queries"] == ["a\ufffd"]
    assert "no array of numbers" in error["data"]["detail"]


async def test_half_a_surrogate_pair_of_a_caller(engine: Any) -> None:
    """-32602 by its field with the id, in HTTP 200; the other members of a batch run, and no engine is asked."""
    broken = b'{"jsonrpc":"2.0","id":"i","method":"retrieve","params":{"query":"a\\ud800"}}'
    async with running([entry("e", engine)]) as gateway:
        response = await gateway.post(broken)
        batch = await gateway.post(b'[%b,{"jsonrpc":"2.0","id":2,"method":"ping"}]' % broken)
    assert response.status_code == batch.status_code == 200
    answer = response.json()
    assert (answer["id"], answer["error"]["code"], answer["error"]["data"]["field"]) == ("i", -32602, "query")
    assert [member["id"] for member in batch.json()] == ["i", 2]
    assert not engine.requests()


@pytest.mark.parametrize("number", [2**64, 2**100, 2**100 + 1])
async def test_large_request_id_is_echoed_digit_for_digit(engine: Any, number: int) -> None:
    """In results and in errors."""
    async with running([entry("e", engine)]) as gateway:
        for method in ("retrieve", "no/such"):
            sent = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"query": "q"}}
            assert json.loads((await gateway.post(sent)).content)["id"] == number


@pytest.mark.parametrize(
    ("method", "params"), [("index/add", {"documents": [{"id": 7, "text": "t"}]}), ("index/delete", {"ids": [7]})]
)
async def test_ids_of_documents_are_strings(engines: Any, method: str, params: Any) -> None:
    """A number is -32602 by its field, and reaches no engine."""
    engine = await engines(capabilities={"index": {"writable": True}})
    async with running([entry("e", engine)], {"index": {"enabled": True}}) as gateway:
        error = await gateway.error(method, params)
    assert error["code"] == -32602
    assert error["data"]["field"] in ("documents[0].id", "ids[0]")
    assert not engine.requests(method)
