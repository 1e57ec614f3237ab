"""What holds for every kind of transport, and what every HTTP client makes of an answer."""

import asyncio
import gzip
import json
from email.utils import formatdate
from typing import Any

import pytest

from app.protocol.errors import (
    BadStatus,
    LegError,
    LegRateLimited,
    ProtocolViolation,
    Refused,
    ResponseTooLarge,
)
from tests.support.raw_peer import (
    answering,
    http_answer,
    rpc_error,
)
from tests.support.running_gateway import given_up
from tests.support.transport_kinds import HttpKind, Kind, Listen, Reach, script_of


async def test_result_comes_back(kind: Kind) -> None:
    """The params that went out come back as the result, after one request."""
    async with kind.meet("echo") as transport:
        reply = await transport.call("retrieve", {"query": "naïve ☃", "k": 3})
    assert reply.result == {"query": "naïve ☃", "k": 3}
    assert reply.attempts == 1


async def test_concurrent_calls_get_their_own_answers(kind: Kind) -> None:
    """Calls that are under way together are not mixed up."""
    async with kind.meet("echo") as transport:
        replies = await asyncio.gather(*(transport.call("retrieve", {"n": n}) for n in range(20)))
    assert [reply.result["n"] for reply in replies] == list(range(20))


async def test_engine_error_keeps_code_and_message(kind: Kind) -> None:
    """A JSON-RPC error of the engine is Refused with its code and message."""
    async with kind.meet("error") as transport:
        with pytest.raises(Refused, match="-32602 k must be positive") as caught:
            await transport.call("retrieve", {})
    assert caught.value.code == -32602


async def test_rate_limited_engine_says_when(kind: Kind) -> None:
    """A -32011 is LegRateLimited with the wait that the engine asks for."""
    async with kind.meet("rate limit") as transport:
        with pytest.raises(LegRateLimited) as caught:
            await transport.call("retrieve", {})
    assert (caught.value.code, caught.value.retry_after_ms) == (-32011, 1500)


async def test_id_as_text_is_accepted(kind: Kind) -> None:
    """An engine that turns our number into a string is understood."""
    async with kind.meet("id as text") as transport:
        assert (await transport.call("ping", {"nonce": "n"})).result == {"nonce": "n"}


async def test_too_large_answer_is_cut_off(kind: Kind) -> None:
    """An answer above `max_response_bytes` fails as too_large."""
    async with kind.meet("huge", max_response_bytes=50_000) as transport:
        with pytest.raises(ResponseTooLarge):
            await transport.call("retrieve", {})


async def test_cancelled_call_leaves_the_transport_usable(client: HttpKind, listen: Listen) -> None:
    """A call that is given up on an engine that hangs does not stand in the way of the next one."""
    peer = await listen(script_of("silent first"))
    transport = client.to(peer.url)
    await given_up(transport.call("retrieve", {"n": 1}), lambda: len(peer.requests) == 1)
    assert (await transport.call("retrieve", {"n": 2})).result == {"n": 2}
    await transport.close()


async def test_close_ends_calls_under_way(kind: Kind) -> None:
    """Closing ends a call that waits with a LegError, and refuses later ones."""
    async with kind.meet("silent first") as transport:
        waiting = asyncio.create_task(transport.call("retrieve", {}))
        await asyncio.sleep(0.05)
        await transport.close()
        with pytest.raises(LegError):
            await waiting
        with pytest.raises(LegError):
            await transport.call("retrieve", {})
        await transport.close()


@pytest.mark.parametrize("behaviour", ["wrong id", "garbage", "no object", "no result", "empty", "dies"])
async def test_nonsense_is_a_protocol_violation(kind: Kind, behaviour: Any) -> None:
    """HTML, an array, nothing, another's id, a hang-up: the leg fails with class protocol and no code."""
    async with kind.meet(behaviour) as transport:
        with pytest.raises(ProtocolViolation) as caught:
            await transport.call("retrieve", {})
    assert caught.value.code is None
    assert caught.value.attempts == 1


HEAD = b"HTTP/1.1 200 OK\r\n"


def _coded(coding: str, body: bytes) -> bytes:
    return http_answer(body, headers=[("Content-Encoding", coding)])


@pytest.mark.parametrize(
    ("raw", "error", "text"),
    [
        pytest.param(http_answer(b"", 204, length=False), ProtocolViolation, "empty body", id="204"),
        pytest.param(http_answer(b"", 202), ProtocolViolation, "empty body", id="202"),
        pytest.param(
            http_answer(b"gone", 302, [("Location", "/?SECRET")]), BadStatus, "HTTP 302, a redirect", id="302"
        ),
        pytest.param(http_answer(b"<h1>no</h1>", 503), BadStatus, "HTTP 503", id="503"),
        pytest.param(http_answer(b"", 404), BadStatus, "HTTP 404", id="404"),
        pytest.param(http_answer(b"no", 401), BadStatus, "HTTP 401", id="401"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ProtocolViolation, ".", id="ssh"),
        pytest.param(bytes(500), ProtocolViolation, ".", id="zeros"),
        pytest.param(HEAD + b"Content-Length: nine\r\n\r\n", ProtocolViolation, ".", id="length in words"),
        pytest.param(
            HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", ProtocolViolation, ".", id="lengths"
        ),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", ProtocolViolation, ".", id="chunk of zz"),
        pytest.param(
            HEAD[:9] + b"101 Up\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", ProtocolViolation, ".", id="101"
        ),
        pytest.param(_coded("br", b"{}"), ProtocolViolation, "encoding", id="brotli"),
        pytest.param(_coded("gzip", b"{}"), ProtocolViolation, "damaged", id="no gzip"),
        pytest.param(_coded("gzip", gzip.compress(b"{}")[:-9]), ProtocolViolation, "early", id="half a gzip"),
    ],
)
async def test_other_answers(listen: Listen, reach: Reach, raw: bytes, error: type[LegError], text: str) -> None:
    """Every status and every malformed answer has its class, and none shows the URL's secrets."""
    peer = await listen(answering(lambda request: raw))
    with pytest.raises(error, match=text) as caught:
        await reach(peer.address(path="/rcp?key=SECRET")).call("retrieve", {})
    assert "SECRET" not in repr(caught.value)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_json_rpc_error_under_another_status(listen: Listen, reach: Reach, status: int) -> None:
    """An HTTP error whose body is a JSON-RPC error keeps its code and message."""
    peer = await listen(answering(lambda request: http_answer(rpc_error(request.id, -32010, "index gone"), status)))
    with pytest.raises(Refused, match="-32010 index gone") as caught:
        await reach(peer).call("retrieve", {})
    assert caught.value.code == -32010


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials(listen: Listen, reach: Reach, status: int) -> None:
    """A 401 or 403 is class http_status, with the code of the JSON-RPC error if there is one."""
    peer = await listen(answering(lambda request: http_answer(rpc_error(None, -32012, "who are you"), status)))
    with pytest.raises(BadStatus, match=f"HTTP {status}: -32012 who are you") as caught:
        await reach(peer).call("retrieve", {})
    assert caught.value.code == -32012


@pytest.mark.parametrize(
    ("body", "retry_after", "wait_ms", "code"),
    [
        (b"slow down", "7", range(7000, 7001), None),
        (b"slow down", formatdate(4_000_000_000, usegmt=True), range(10**9, 10**13), None),
        (b"slow down", "soon", None, None),
        (json.dumps(rpc_error(None, -32011, "slow down")).encode(), "2", range(2000, 2001), -32011),
        (json.dumps(rpc_error(None, -32011, "no", retryAfterMs=50)).encode(), "2", range(50, 51), -32011),
    ],
)
async def test_429(
    listen: Listen, reach: Reach, body: bytes, retry_after: str, wait_ms: range | None, code: int | None
) -> None:
    """A 429 is class rate_limited, with the wait from the body or from Retry-After in seconds or as a date."""
    peer = await listen(answering(lambda request: http_answer(body, 429, [("Retry-After", retry_after)])))
    with pytest.raises(LegRateLimited) as caught:
        await reach(peer).call("retrieve", {})
    assert caught.value.code == code
    waits = caught.value.retry_after_ms
    assert waits is None if wait_ms is None else waits in wait_ms
