"""JSON-RPC over HTTP as a caller meets it: ids, batches, notifications, codes and their precedence, HTTP statuses."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.running_gateway import entry, running, until
from tests.support.scripted_engine import hang

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}


@pytest.fixture
async def gateway(engines: Any) -> Any:
    """A gateway over one healthy engine."""
    async with running([entry("e", await engines())]) as running_gateway:
        yield running_gateway


@pytest.mark.parametrize("id", ["1", 1, "abc", 1.5, 0, -7, 2**60, ""])
async def test_ids_come_back_as_they_were_sent(gateway: Any, id: Any) -> None:
    """The reply carries the identical JSON value and type (B76)."""
    response = await gateway.post({**PING, "id": id})
    assert json.loads(response.content)["id"] == id
    assert type(json.loads(response.content)["id"]) is type(id)


@pytest.mark.parametrize("id", [None, {}, [], True])
async def test_ids_of_other_types_are_refused(gateway: Any, id: Any) -> None:
    """Null, objects, arrays and booleans are no ids: -32600 with id null (B76)."""
    response = await gateway.post({**PING, "id": id})
    body = response.json()
    assert (body["id"], body["error"]["code"]) == (None, -32600)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xef\xbb\xbf{}", -32700),
        ('{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"), -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"nonce":NaN}}', -32700),
        (b'"x"', -32600),
        (b"123", -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","\\u006dethod":"shutdown"}', -32700),
        (b'[{"method":"ping","meth\\u006Fd":"retrieve"}]', -32700),
    ],
)
async def test_what_is_no_json_rpc_is_400(gateway: Any, body: bytes, code: int) -> None:
    """A body that is not JSON, or JSON that is no JSON-RPC, is HTTP 400 with a JSON-RPC error and id null (B91)."""
    response = await gateway.post(body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code
    assert response.json()["id"] is None
    assert response.headers["content-length"] == str(len(response.content))


async def test_content_type_does_not_decide(gateway: Any) -> None:
    """A bogus charset in Content-Type changes nothing: the bytes are UTF-8 JSON or refused (B91)."""
    response = await gateway.post(PING, headers={"Content-Type": "application/json; charset=bogus"})
    assert response.json()["result"] == {}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({**PING, "jsonrpc": "1.0"}, -32600),
        ({"id": 1, "method": "ping"}, -32600),
        ({**PING, "method": 5}, -32600),
        ({**PING, "params": [1]}, -32602),
        ({**PING, "params": "x"}, -32602),
        ({**PING, "params": 0}, -32602),
        ({**PING, "params": False}, -32602),
        ({**PING, "method": "initialize", "params": []}, -32602),
        ({**PING, "method": "catalog/list", "params": [1]}, -32602),
        ({**PING, "method": "retrieve", "params": ["q"]}, -32602),
        ({**PING, "method": "nonsense", "params": [1]}, -32004),
        ({**PING, "method": "embed", "params": [1]}, -32003),
        ({**PING, "method": "notifications/cancel", "params": {"id": 3}}, -32600),
        ({**PING, "method": "nonsense"}, -32004),
        ({**PING, "method": "rpc.discover"}, -32004),
        ({**PING, "method": "embed", "params": {"inputs": 7}}, -32003),
        ({**PING, "method": "x-acme/rank"}, -32003),
        ({**PING, "method": "x-acme"}, -32004),
        ({**PING, "method": "retrieve"}, -32602),
        ({**PING, "method": "initialize", "params": {"protocolVersion": 0}}, -32002),
        ({**PING, "method": "initialize", "params": {"protocolVersion": "1"}}, -32602),
    ],
)
async def test_errors_are_200_with_their_code(gateway: Any, message: Any, code: int) -> None:
    """Every well-formed JSON-RPC error is HTTP 200; not RCP wins over not offered, gating over params."""
    response = await gateway.post(message)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == code
    assert response.json()["id"] == 1


@pytest.mark.parametrize("levels", [101, 500, 5000])
@pytest.mark.parametrize(
    ("method", "code"), [("retrieve", -32602), ("ping", -32602), ("nonsense", -32004), ("embed", -32003)]
)
async def test_json_that_nests_too_deep_is_refused_after_gating(
    gateway: Any, levels: int, method: str, code: int
) -> None:
    """It is JSON: its id is echoed, in a batch too, where the other members are answered. Broken JSON is -32700."""
    deep = b"[" * levels + b'"[{]"' + b"]" * levels
    message = b'{"jsonrpc":"2.0","method":"%b","params":{"query":%b},"id":"last"}' % (method.encode(), deep)
    response = await gateway.post(message)
    assert response.status_code == 200
    assert (response.json()["id"], response.json()["error"]["code"]) == ("last", code)
    answers = (await gateway.post(b"[" + message + b"," + json.dumps(PING).encode() + b"]")).json()
    assert sorted((str(each["id"]), each.get("error", {}).get("code")) for each in answers) == [
        ("1", None),
        ("last", code),
    ]
    broken = await gateway.post(message.replace(b"]]", b"]}", 1))
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, -32700)


async def test_an_empty_batch_is_one_error(gateway: Any) -> None:
    """HTTP 200 with a single -32600 and no list (RCP §5.2, §11)."""
    response = await gateway.post(b"[]")
    assert response.status_code == 200
    assert (response.json()["id"], response.json()["error"]["code"]) == (None, -32600)
    assert gateway.state.admission.in_flight == 0


async def test_the_compact_envelope_is_answered(gateway: Any) -> None:
    """`{method, params}` without jsonrpc and id is answered with id null."""
    response = await gateway.post({"method": "ping", "params": {"nonce": "n"}})
    assert response.json() == {"jsonrpc": "2.0", "id": None, "result": {"nonce": "n"}}


@pytest.mark.parametrize("method", ["ping", "retrieve", "nonsense", "notifications/cancel", "notifications/new"])
async def test_notifications_are_never_answered(gateway: Any, method: str) -> None:
    """A message without id is 204 without a body, whatever its method."""
    response = await gateway.post({"jsonrpc": "2.0", "method": method, "params": {"id": 99}})
    assert response.status_code == 204
    assert response.content == b""


@pytest.mark.parametrize("params", [[1], "x", 7, [{}]])
async def test_notifications_with_unusable_params_are_not_answered(gateway: Any, params: Any) -> None:
    """Whatever their params are, over HTTP that is 204 without a body."""
    for method in ("notifications/cancel", "ping", "retrieve", "nonsense"):
        response = await gateway.post({"jsonrpc": "2.0", "method": method, "params": params})
        assert (response.status_code, response.content) == (204, b"")


async def test_the_path_must_agree_with_the_body(gateway: Any) -> None:
    """/rcp/{method} and the body's method must be the same; /rcp takes any."""
    assert (await gateway.post(PING, "/rcp/ping")).json()["result"] == {}
    assert (await gateway.post(PING, "/rcp/info")).json()["error"]["code"] == -32600
    listing = {**PING, "method": "catalog/list"}
    assert "result" in (await gateway.post(listing, "/rcp/catalog/list")).json()


async def test_a_batch_answers_each_request_once(gateway: Any) -> None:
    """Requests are answered, notifications are not, malformed members get -32600 with id null (B78)."""
    batch = [PING, {"jsonrpc": "2.0", "method": "ping"}, 1, [PING], {**PING, "id": "two"}, {**PING, "id": "two"}]
    answers = (await gateway.post(batch)).json()
    assert sorted(str(answer["id"]) for answer in answers) == ["1", "None", "None", "two", "two"]
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32600, -32600]


async def test_a_batch_of_notifications_has_no_body(gateway: Any) -> None:
    """Only notifications: 204 and nothing else."""
    response = await gateway.post([{"jsonrpc": "2.0", "method": "ping"}])
    assert response.status_code == 204
    assert response.content == b""


async def test_a_batch_of_rubbish_is_answered_member_by_member(gateway: Any) -> None:
    """[1,2,3] are three -32600."""
    response = await gateway.post([1, 2, 3])
    assert response.status_code == 200
    assert [answer["error"]["code"] for answer in response.json()] == [-32600] * 3


async def test_a_batch_beyond_the_limit_is_one_error(engines: Any) -> None:
    """More members than `server.max_batch` are one -32602 that names the bound."""
    async with running([entry("e", await engines())], {"server": {"max_batch": 2}}) as gateway:
        answer = (await gateway.post([PING] * 3)).json()
    assert answer["error"]["code"] == -32602
    assert "2" in answer["error"]["message"]


async def test_batch_members_run_at_the_same_time(engines: Any) -> None:
    """One slow member delays no other beyond the slowest of them."""
    engine = await engines()
    asked = 0
    both = asyncio.Event()

    async def rendezvous(request: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            both.set()
        await both.wait()
        return {"hits": []}

    engine.answers["retrieve"] = rendezvous
    question = {**PING, "method": "retrieve", "params": {"query": "q"}}
    async with running([entry("e", engine)]) as gateway:
        answers = (await gateway.post([question, {**question, "id": 2}])).json()
    assert {answer["id"] for answer in answers} == {1, 2}


async def test_only_post_is_spoken(gateway: Any) -> None:
    """GET /rcp is 405 and says what is allowed."""
    response = await gateway.client.get("/rcp")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == -32600


async def test_other_paths_are_404_with_a_json_rpc_body(gateway: Any) -> None:
    """A path that is not RCP's is 404, and so are its look-alikes."""
    for path in ("/rcpx", "/RCP", "/nonsense/rcp"):
        response = await gateway.post(PING, path)
        assert response.status_code == 404, path
        assert response.json()["error"]["code"] == -32015


async def test_a_body_beyond_the_limit_is_413(engines: Any) -> None:
    """A request longer than `server.max_body_bytes` is 413 with -32013, announced or not."""
    async with running([entry("e", await engines())], {"server": {"max_body_bytes": 2048}}) as gateway:
        announced = await gateway.post({**PING, "params": {"nonce": "x" * 4096}})

        async def chunks() -> Any:
            for _ in range(8):
                yield b"x" * 512

        streamed = await gateway.client.post("/rcp", content=chunks())
    for response in (announced, streamed):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == -32013


async def test_compressed_bodies_are_415(gateway: Any) -> None:
    """A compressed request body is refused, not guessed at."""
    response = await gateway.post(PING, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == -32600


async def test_a_sane_request_id_is_kept_and_another_made(gateway: Any) -> None:
    """X-Request-ID comes back if it is sane, else one is made."""
    kept = await gateway.post(PING, headers={"X-Request-ID": "abc-1"})
    made = await gateway.post(PING, headers={"X-Request-ID": "a b<c>"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert made.headers["x-request-id"] not in ("", "a b<c>")


async def test_initialize_is_idempotent_and_negotiates(gateway: Any) -> None:
    """Stateless over HTTP: any number of handshakes; the version is the smaller of both."""
    for version in (1, 2, 99):
        result = await gateway.result("initialize", {"protocolVersion": version, "client": {"name": "t"}})
        assert result["protocolVersion"] == 1
        assert result["server"]["name"] == "rcp-gateway"
    assert await gateway.result("shutdown") == {}
    assert await gateway.result("ping", {"nonce": {"deep": [1]}}) == {"nonce": {"deep": [1]}}


async def test_a_caller_that_hangs_up_cancels_its_engine_calls(engines: Any) -> None:
    """A disconnect ends the fan-out: no leg survives its caller (B36)."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    async with running([entry("e", engine, timeoutMs=60_000)]) as gateway:
        body = json.dumps({**PING, "method": "retrieve", "params": {"query": "q"}}).encode()
        gone = asyncio.Event()
        sent: list[Any] = []
        events = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for event in events:
                return event
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "path": "/rcp", "headers": []}
        request = asyncio.create_task(gateway.client._transport.app(scope, receive, send))
        await until(lambda: len(engine.requests()) == 1)
        gone.set()
        await request
        assert gateway.state.engines.engines[0].semaphore.in_flight == 0
        assert await gateway.metric("rcp_gateway_requests_total", method="retrieve", outcome="cancelled") == 1
    assert sent == []
