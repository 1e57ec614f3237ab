"""The RPC endpoint: paths, HTTP statuses, bodies and their bound, headers. Pure ASGI."""

import json
import re

import pytest

from tests.support.fake_gateway import Exchange
from tests.support.rpc_endpoint import LIMIT, PING, ScriptedEndpoint

# Answers


async def test_answer_has_its_length_and_the_request_id() -> None:
    """An answer is HTTP 200 with JSON, Content-Length and a request id, in two ASGI events."""
    endpoint = ScriptedEndpoint()
    answer = await endpoint.post(PING)
    assert answer.status == 200
    assert answer.json == {"jsonrpc": "2.0", "id": 1, "result": {}}
    request_id = answer.header("x-request-id")
    assert endpoint.dispatcher.asked == [("message", json.loads(PING), request_id, None)]


async def test_no_answer_is_204() -> None:
    """What is not answered is 204 without a body, for one message and for a batch."""
    for body in (PING, b"[" + PING + b"]"):
        answer = await ScriptedEndpoint(None).post(body)
        assert (answer.status, answer.body, answer.header("content-length")) == (204, b"", None)
        assert answer.header("x-request-id")


async def test_batch_goes_to_the_batch() -> None:
    """An array goes to the batch as it is."""
    endpoint = ScriptedEndpoint(b"[]")
    answer = await endpoint.post(b'[1, {"method": "ping"}]', path="/rcp/ping")
    assert (answer.status, answer.body) == (200, b"[]")
    assert [(kind, message, path) for kind, message, _, path in endpoint.dispatcher.asked] == [
        ("batch", [1, {"method": "ping"}], "ping")
    ]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/rcp", None),
        ("/rcp/", None),
        ("/rcp/ping", "ping"),
        ("/rcp/catalog/list", "catalog/list"),
        ("/rcp/x-acme/rank", "x-acme/rank"),
        ("/rcp//ping", "/ping"),
    ],
)
async def test_path_names_the_method(path: str, named: str | None) -> None:
    """What follows the base is the method, slashes included."""
    endpoint = ScriptedEndpoint()
    await endpoint.post(PING, path=path)
    assert [path_method for *_, path_method in endpoint.dispatcher.asked] == [named]


# Refusals


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "BREW"])
async def test_only_post_is_spoken(method: str) -> None:
    """Any other HTTP method is 405 and says what is allowed."""
    endpoint = ScriptedEndpoint()
    answer = await Exchange(method=method, path="/rcp/ping").run(endpoint.app)
    assert (answer.status, answer.header("allow")) == (405, "POST")
    assert answer.json["error"]["code"] == -32600
    assert endpoint.dispatcher.asked == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xef\xbb\xbf" + PING, -32700),
        (PING.decode().encode("utf-16"), -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"nonce":NaN}}', -32700),
        (b'{"id":1,"method":"ping","method":"info"}', -32700),
        (b"[" * 5000, -32700),
        (b'"ping"', -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b"true", -32600),
        (b"{}", -32600),
        (b'[["x"]', -32700),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
    ],
    ids=repr,
)
async def test_what_is_no_json_rpc_is_400(body: bytes, code: int) -> None:
    """A body that is not JSON, or JSON that is no JSON-RPC, is 400 with an error and id null (B91)."""
    endpoint = ScriptedEndpoint()
    if len(body) > LIMIT:
        body = body[: LIMIT - 1]
    answer = await endpoint.post(body)
    assert answer.status == 400
    assert (answer.json["error"]["code"], answer.json["id"]) == (code, None)
    assert endpoint.dispatcher.asked == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "deflate, gzip", "identity, gzip", "zstd"])
async def test_compressed_body_is_415(encoding: str) -> None:
    """A compressed body is refused before it is read (B68)."""
    endpoint = ScriptedEndpoint()
    answer = await endpoint.post(PING, content_encoding=encoding)
    assert answer.status == 415
    assert answer.json["error"]["code"] == -32600
    assert endpoint.dispatcher.asked == []


@pytest.mark.parametrize("encoding", ["identity", " Identity ", ""])
async def test_identity_is_no_compression(encoding: str) -> None:
    """`identity` says that nothing was done to the body."""
    assert (await ScriptedEndpoint().post(PING, content_encoding=encoding)).status == 200


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/json; charset=bogus", ""])
async def test_content_type_does_not_decide(content_type: str) -> None:
    """The bytes decide, not what the caller calls them (B91)."""
    assert (await ScriptedEndpoint().post(PING, content_type=content_type)).status == 200


# The bound


def padded(size: int) -> bytes:
    """A request of exactly so many bytes."""
    return PING + b" " * (size - len(PING))


async def test_body_of_exactly_the_limit_is_read() -> None:
    """The bound itself is allowed, in one piece and in many."""
    body = padded(LIMIT)
    assert (await ScriptedEndpoint().post(body)).status == 200
    assert (await ScriptedEndpoint().post(*(body[at : at + 100] for at in range(0, LIMIT, 100)))).status == 200


@pytest.mark.parametrize("pieces", [1, 2, 11, LIMIT + 1])
async def test_body_beyond_the_limit_is_413(pieces: int) -> None:
    """One byte more is 413 with -32013, however it arrives, and the connection is not used again."""
    body = padded(LIMIT + 1)
    size = -(-len(body) // pieces)
    endpoint = ScriptedEndpoint()
    answer = await endpoint.post(*(body[at : at + size] for at in range(0, len(body), size)))
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert answer.json["error"]["code"] == -32013
    assert endpoint.dispatcher.asked == []


async def test_announced_body_beyond_the_limit_is_not_read() -> None:
    """A Content-Length beyond the bound is refused without reading a byte."""
    endpoint = ScriptedEndpoint()
    exchange = Exchange(chunks=(PING,), headers=[(b"content-length", b"%d" % (LIMIT + 1))])
    await exchange.run(endpoint.app)
    assert (exchange.status, exchange.received) == (413, 0)


async def test_endless_body_is_cut_off_soon() -> None:
    """A body that never ends is refused soon after the bound, whatever its length was said to be (B68)."""
    endpoint = ScriptedEndpoint()
    exchange = Exchange(chunks=[b" " * 100] * 10_000, headers=[(b"content-length", b"50")])
    await exchange.run(endpoint.app)
    assert exchange.status == 413
    assert exchange.received <= LIMIT // 100 + 2


@pytest.mark.parametrize("length", [b"-5", b"many", b"", b"1e9", b"0x10", b"9" * 5000])
async def test_odd_content_length_does_not_break_the_endpoint(length: bytes) -> None:
    """What is no length says nothing, or too much; the body itself is counted all the same."""
    exchange = Exchange(chunks=(PING,), headers=[(b"content-length", length)])
    await exchange.run(ScriptedEndpoint().app)
    assert exchange.status in (200, 413)


async def test_body_in_pieces_is_put_together() -> None:
    """A request in many pieces, empty ones among them, is one request."""
    endpoint = ScriptedEndpoint()
    answer = await endpoint.post(*(PING[at : at + 1] for at in range(len(PING))), b"")
    assert answer.status == 200
    assert endpoint.dispatcher.asked[0][1] == json.loads(PING)


# Request ids


@pytest.mark.parametrize("sane", ["abc-1", "a" * 128, "3f:2/+=._-"])
async def test_sane_request_id_is_kept(sane: str) -> None:
    """A request id that is harmless comes back and goes to the log."""
    endpoint = ScriptedEndpoint()
    answer = await endpoint.post(PING, x_request_id=sane)
    assert answer.header("x-request-id") == sane
    assert endpoint.dispatcher.asked[0][2] == sane


@pytest.mark.parametrize("odd", ["", "a b", "<script>", "a" * 129, "a\r\nset-cookie: x", "ümlaut", "a\x00"])
async def test_odd_request_id_is_replaced(odd: str) -> None:
    """Any other is replaced by one of ours."""
    answer = await ScriptedEndpoint().post(PING, x_request_id=odd)
    assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", answer.header("x-request-id") or "")


async def test_request_ids_differ() -> None:
    """No two requests get the same id, not from two endpoints either, and refusals have one, too."""
    endpoints = (ScriptedEndpoint(), ScriptedEndpoint())
    answers = [await endpoint.post(body) for endpoint in endpoints for body in (PING, PING, b"{")]
    assert len({answer.header("x-request-id") for answer in answers}) == 6
