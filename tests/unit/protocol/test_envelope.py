"""JSON-RPC framing: which bytes are a request, and which bytes answer it."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.envelope import (
    MAX_REQUEST_DEPTH,
    Request,
    SharedParams,
    UnusableParams,
    check_params,
    dumps,
    encode_call,
    encode_notification,
    failure,
    loads,
    read_body,
    read_request,
    recover_id,
    success,
)
from app.protocol.errors import InvalidParams, InvalidRequest, ParseError


def nested(levels: int, inside: bytes = b"1") -> bytes:
    return b'{"a":' * levels + inside + b"}" * levels


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"x", b"{", b'{"a":1}x', b"[1,]", b"01", b"{'a':1}", b'{"a":1}\x00', b"\x00"),
        *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b'{"a":-1e400}'),
        *(b"\xef\xbb\xbf{}", "{}".encode("utf-16"), "{}".encode("utf-32"), b'"\xff"', b'"\xed\xa0\x80"'),
        *(b'"\x01"', b'"\n"', b'["\\ud800", NaN]', b'["\\ud800", 1e400]', b'["\\ud800", 1' + b"0" * 400 + b"]"),
        b'["\\ud800"' + b",[" * 5000 + b"]" * 5000,
        b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    """NaN, overflow, a BOM, other encodings, encoded surrogates and endless nesting are -32700, and never a crash."""
    for read in (loads, read_body):
        with pytest.raises(ParseError) as caught:
            read(body)
        assert caught.value.code == -32700
        assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'"x"', "x"),
        (b"123", 123),
        (b"null", None),
        (b"[]", []),
        (b'{"a":"\\u0000\\ud83d\\ude00"}', {"a": "\x00😀"}),
        (b"1e5", 100000.0),
        (b"-0", 0),
        (b"18446744073709551615", 2**64 - 1),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_any_json_value_is_parsed(body: bytes, value: Any) -> None:
    """Parsing says nothing about meaning: a bare value is JSON too, and of equal keys the last counts."""
    assert loads(body) == value
    assert type(loads(body)) is type(value)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()),
        lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(), below, max_size=3)),
        max_leaves=6,
    ).filter(lambda value: "inf" not in repr(value))
)
def test_written_json_is_what_any_other_parser_reads(value: Any) -> None:
    """What we write means the same to the standard library and to ourselves."""
    assert loads(dumps(value)) == json.loads(dumps(value))


def test_dumps_refuses_what_json_cannot_say() -> None:
    """Keys that are no strings, lone surrogates and foreign objects raise TypeError; NaN becomes null."""
    for value in ({1: 2}, "\ud800", {"a": object()}, 2**64):
        with pytest.raises(TypeError):
            dumps(value)
    assert dumps([float("nan"), float("inf")]) == b"[null,null]"


@pytest.mark.parametrize("params", [[], [1], "x", 0, False])
def test_params_that_are_no_object_are_refused_after_gating(params: Any) -> None:
    """They read as none, so that the method can be gated first; `check_params` is -32602."""
    request = read_request({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params})
    assert request.params == {}
    with pytest.raises(InvalidParams) as caught:
        check_params(request.params)
    assert caught.value.data["field"] == "params"
    check_params({})


def test_body_of_a_caller_is_bounded_in_depth() -> None:
    """A caller may nest a hundred levels deep and no deeper; a long flat body is not taken for a deep one."""
    assert read_body(nested(MAX_REQUEST_DEPTH)) == loads(nested(MAX_REQUEST_DEPTH))
    for levels in (MAX_REQUEST_DEPTH + 1, 500, 2000):
        deep = b'{"method":"x","params":{"q":' + b"[" * levels + b"]" * levels + b'},"id":"]\\""}'
        message = read_body(deep)
        assert isinstance(message["params"], UnusableParams)
        assert (message["id"], message["method"]) == (']"', "x")
        with pytest.raises(InvalidParams, match="nests more than 100 levels"):
            check_params(message["params"])
        with pytest.raises(ParseError):
            read_body(deep[:-1])
        if levels < 1024:  # beyond, what nests too deep is not read
            with pytest.raises(ParseError):
                read_body(deep.replace(b"[]", b"[,]"))
    assert read_body(b"[" + b"{}," * 5000 + b"{}]") == [{}] * 5001
    assert read_body(orjson.dumps({"text": "{[" * 5000}))


@pytest.mark.parametrize(
    "body",
    [
        b'{"method":"ping","method":"shutdown"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"method":"ping"}',
        b'[{"method":"ping"},{"method":"a","x":{},"method":"b"}]',
        b'{"method":"ping","\\u006dethod":"shutdown"}',
        b'{"meth\\u006Fd":"ping","m\\u0065thod":"shutdown","n":' + b"9" * 300 + b"}",
    ],
)
def test_method_given_twice_is_refused(body: bytes) -> None:
    """Two methods in one object are -32700, so that nobody in front of us can have read another one."""
    with pytest.raises(ParseError, match="'method' twice"):
        read_body(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"method":"retrieve","params":{"rerank":{"method":"llm"},"fusion":{"method":"rrf"}}}',
        b'[{"method":"ping"},{"method":"ping"}]',
        b'{"method":"retrieve","params":{"query":"\\"method\\" \\"method\\""}}',
        b'{"method":"ping","params":{"n":' + b"9" * 300 + b',"x":{"method":1}}}',
    ],
)
def test_method_in_several_objects_is_no_repetition(body: bytes) -> None:
    """Each object may have a method of its own, whatever else stands in the body."""
    assert read_body(body) == loads(body)


@pytest.mark.parametrize("request_id", ["1", 1, "abc", 1.5, 0, -7, 2**60, "", -0.0, 2**64 - 1, "\x00😀"])
def test_id_is_echoed_with_its_type(request_id: Any) -> None:
    """The id comes back as the identical JSON value, in results and in errors."""
    sent = dumps({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
    request = read_request(loads(sent))
    assert request == Request("ping", {}, request_id, notification=False)
    for answer in (success(request.id, {}), failure(request.id, InvalidParams("no"))):
        assert b'"id":' + dumps(request_id) + b"," in answer
        assert type(loads(answer)["id"]) is type(request_id)
    assert recover_id(loads(sent)) == request_id


@pytest.mark.parametrize("request_id", [None, True, False, {}, [], [1], 1e300, float(2**64)])
def test_id_that_is_no_id_is_refused_and_not_echoed(request_id: Any) -> None:
    """null, booleans, objects, arrays and floats that have lost digits are -32600 with id null."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": "ping"}
    with pytest.raises(InvalidRequest) as caught:
        read_request(message)
    assert caught.value.code == -32600
    assert caught.value.data == {"field": "id"}
    assert recover_id(message) is None


@pytest.mark.parametrize(
    "digits", [str(2**64), str(2**100), str(2**100 + 1), str(-(2**63) - 1), "1.00000000000000000001", "1e300", "1.5"]
)
def test_number_that_is_an_id_is_echoed_digit_for_digit(digits: str) -> None:
    """Also where no double holds it; a cancel of it names the same."""
    message = read_body(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % digits.encode())
    request = read_request(message)
    for answer in (success(request.id, {}), failure(recover_id(message), InvalidParams("no"))):
        assert b'"id":%b,' % digits.encode() in answer
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancel","params":{"id":%b}}' % digits.encode()
    assert recover_id(read_request(read_body(cancel)).params) == request.id
    assert [member.get("id") for member in read_body(b"[%b,7]" % cancel)[:1]] == [None]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (b'{"query":"a\\ud800b"}', "query"),
        (b'{"query":"q","filter":{"value":["x","\\uDC00"]}}', "filter.value[1]"),
        (b'{"\\ud800":1}', "params"),
        (b'["\\ud800"]', "[0]"),
    ],
)
def test_half_a_surrogate_pair_in_params_is_refused_by_its_field(params: bytes, field: str) -> None:
    """It is JSON, so the id is echoed (-32602); a notification is dropped; others of a batch run."""
    broken = b'{"jsonrpc":"2.0","id":"\\u00e9","method":"ping","params":%b}' % params
    message, well, notification = read_body(
        b'[%b,{"jsonrpc":"2.0","id":2,"method":"ping","params":{"nonce":"\\ud83d\\ude00"}},%b]'
        % (broken, broken.replace(b'"id":"\\u00e9",', b""))
    )
    with pytest.raises(InvalidParams, match="half of a surrogate pair") as caught:
        check_params(read_request(message).params)
    assert caught.value.data == {"field": field}
    assert recover_id(message) == "é"
    assert read_request(well).params == {"nonce": "😀"}
    assert read_request(notification).notification


@pytest.mark.parametrize("levels", [MAX_REQUEST_DEPTH + 1, 600, 2000])
@pytest.mark.parametrize("half", ["inside", "beside", "nowhere"])
def test_deep_nesting_beside_other_oddities(levels: int, half: str) -> None:
    """Nesting, halves of surrogate pairs and rounded ids in one body: each member is answered for what it is."""
    inside, beside = (b'"\\udc00"' if half == place else b"1" for place in ("inside", "beside"))
    params = b'{"q":' + b"[" * levels + inside + b"]" * levels + b',"x":%b}' % beside
    deep = b'{"jsonrpc":"2.0","id":%d,"method":"x","params":%b}' % (2**100, params)
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancel","params":{"id":%d}}' % 2**100
    refused, stopped, well = read_body(b'[%b,%b,{"method":"ping","params":{"nonce":"\\u00e9"}}]' % (deep, cancel))
    assert failure(recover_id(refused), InvalidParams("no")).startswith(b'{"jsonrpc":"2.0","id":%d,' % 2**100)
    assert recover_id(stopped["params"]) == recover_id(refused)
    assert read_request(well).params == {"nonce": "é"}
    for message in (refused, read_body(deep)):
        with pytest.raises(InvalidParams, match="surrogate" if half == "beside" else "nests more than 100 levels"):
            check_params(read_request(message).params)
    twice = deep.replace(b'"method":"x"', b'"method":"x","\\u006dethod":"y"')
    with pytest.raises(ParseError, match="'method' twice"):
        read_body(twice)


def test_half_a_surrogate_pair_outside_params() -> None:
    """In an id it makes it none (-32600, never a notification); a method with one is unknown."""
    with pytest.raises(InvalidRequest):
        read_request(read_body(b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}'))
    assert read_request(read_body(b'{"jsonrpc":"2.0","id":1,"method":"p\\ud800"}')).method == "p\ufffd"


def test_message_without_id_is_a_notification() -> None:
    """`jsonrpc` without `id` is a notification, whatever its method."""
    request = read_request({"jsonrpc": "2.0", "method": "does/not/exist"})
    assert request.notification
    assert request.id is None


def test_compact_envelope_is_answered_with_a_null_id() -> None:
    """`{method, params}` alone is a request that is answered with id null."""
    request = read_request({"method": "ping", "params": {"nonce": 1}, "unknown": True})
    assert request == Request("ping", {"nonce": 1}, None, notification=False)
    assert loads(success(request.id, {})) == {"jsonrpc": "2.0", "id": None, "result": {}}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        *((message, None) for message in ("x", 123, None, True, [], [{}], 1.5)),
        *(({"jsonrpc": "2.0", "id": 1, "method": m}, "method") for m in (None, "", 1, True, [], {})),
        ({}, "method"),
        ({"jsonrpc": "2.0", "id": 1}, "method"),
        *(({"jsonrpc": v, "id": 1, "method": "ping"}, "jsonrpc") for v in ("1.0", 2.0, 2, "2", None, True, [])),
        ({"id": 1, "method": "ping"}, "jsonrpc"),
        ({"jsonrpc": None, "method": "ping"}, "jsonrpc"),
    ],
)
def test_what_is_no_request_is_invalid(message: Any, field: str | None) -> None:
    """Anything but a request object with a method is -32600 and says which member is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        read_request(message)
    assert caught.value.code == -32600
    assert caught.value.data.get("field") == field


@pytest.mark.parametrize("params", [None, {}])
def test_absent_params_are_an_empty_object(params: Any) -> None:
    """Params that are absent or null are an empty object."""
    assert read_request({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params}).params == {}
    assert read_request({"jsonrpc": "2.0", "id": 1, "method": "ping"}).params == {}


def test_id_is_recovered_from_a_malformed_request() -> None:
    """An error about a malformed request echoes the id if there is one to trust."""
    assert recover_id({"id": "a", "method": 1}) == "a"
    assert recover_id({"id": 7}) == 7
    for message in ([], None, "x", {}, {"id": True}, {"id": [1]}):
        assert recover_id(message) is None


def test_failure_carries_code_message_and_data() -> None:
    """An error object has code and message, and data only if there is any."""
    with_data = loads(failure(1, InvalidParams("no", field="k")))
    assert with_data == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32602, "message": "no", "data": {"field": "k"}},
    }
    assert "data" not in loads(failure(1, InvalidParams("no")))["error"]


def test_answer_survives_what_nests_too_deeply_to_be_written() -> None:
    """One engine's endless meta costs that part of one hit, not the answer."""
    deep = loads(nested(1000))
    result = {"hits": [{"id": 1, "meta": {"ok": [1, {"x": None}], "deep": deep}}, {"id": 2, "score": 0.5}]}
    answer = loads(success(7, result))
    hits = answer["result"]["hits"]
    assert answer["id"] == 7
    assert hits[1] == {"id": 2, "score": 0.5}
    assert hits[0]["meta"]["ok"] == [1, {"x": None}]
    assert hits[0]["meta"]["deep"]["a"]["a"]
    assert result["hits"][0]["meta"]["deep"] is deep
    with pytest.raises(TypeError):
        success(7, {"x": object()})


def test_our_own_messages_are_full_json_rpc() -> None:
    """What we send to engines is full JSON-RPC 2.0: calls with an id, notifications without."""
    assert encode_call(3, "retrieve", {"query": "q"}) == (
        b'{"jsonrpc":"2.0","id":3,"method":"retrieve","params":{"query":"q"}}'
    )
    assert encode_notification("notifications/cancel", {"id": 3}) == (
        b'{"jsonrpc":"2.0","method":"notifications/cancel","params":{"id":3}}'
    )
    request = read_request(loads(encode_notification("notifications/cancel", {"id": 3})))
    assert request.notification


def test_shared_params_are_written_once() -> None:
    """Params for several engines make the very bytes that others make, whatever the id and the method."""
    params = {"query": 'a "quoted" \u00e9', "_meta": {"deadlineMs": 5}, "k": 20}
    shared = SharedParams(params)
    for call_id, method in [(1, "retrieve"), (2, "retrieve"), (10**12, 'x-"odd"'), (3, "retrieve")]:
        assert encode_call(call_id, method, shared) == encode_call(call_id, method, params)
    assert shared == params
    assert shared.tail("retrieve") is shared.tail("retrieve")
    assert repr(shared) == f"SharedParams({params!r})"
