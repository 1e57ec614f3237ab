"""From one parsed message to the bytes of its answer: framing, gating order, and the methods themselves."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.protocol.method_names import GATES
from tests.support.fake_engine import FakeEngine, hits
from tests.support.fake_gateway import FakeGateway, Json
from tests.support.log_lines import own_log
from tests.support.virtual_time import virtually


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No line of these tests goes to the terminal."""
    with own_log():
        yield


def code_of(answer: Json) -> int:
    """The code of an error answer."""
    code: int = answer["error"]["code"]
    return code


# Framing


@pytest.mark.parametrize("message_id", ["1", 1, "abc", 1.5, 0, -7, 2**60, "", "ü"])
async def test_id_comes_back_as_it_was(message_id: Any) -> None:
    """Success and error carry the request's id with the same type and value (B76)."""
    gateway = FakeGateway()
    for method in ("ping", "nonsense"):
        answer = await gateway.send({"jsonrpc": "2.0", "id": message_id, "method": method})
        assert answer["id"] == message_id
        assert type(answer["id"]) is type(message_id)


@pytest.mark.parametrize("message_id", [None, True, False, [], {}, [1], {"a": 1}, 1e300])
async def test_what_is_no_id_is_refused(message_id: Any) -> None:
    """Null, booleans, arrays, objects and numbers that no peer can echo are -32600 with id null (B76)."""
    answer = await FakeGateway().send({"jsonrpc": "2.0", "id": message_id, "method": "ping"})
    assert (code_of(answer), answer["id"]) == (-32600, None)


@pytest.mark.parametrize(
    ("message", "echoed"),
    [
        ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, 7),
        ({"jsonrpc": 2, "id": "7", "method": "ping"}, "7"),
        ({"jsonrpc": None, "id": 7, "method": "ping"}, 7),
        ({"id": 7, "method": "ping"}, 7),
        ({"jsonrpc": "2.0", "id": 7}, 7),
        ({"jsonrpc": "2.0", "id": 7, "method": ""}, 7),
        ({"jsonrpc": "2.0", "id": 7, "method": 7}, 7),
        ({"jsonrpc": "2.0", "id": True, "method": 7}, None),
        ({}, None),
        ([], None),
        ("ping", None),
        (7, None),
        (None, None),
    ],
)
async def test_malformed_message_is_refused(message: Any, echoed: Any) -> None:
    """What is no request is -32600; its id is echoed where there is one to trust."""
    gateway = FakeGateway()
    answer = await gateway.send(message)
    assert (code_of(answer), answer["id"]) == (-32600, echoed)
    assert gateway.metric("errors_total", code="-32600") == 1


async def test_compact_envelope_is_answered() -> None:
    """`{method, params}` alone is answered, with id null (RCP §5.2)."""
    gateway = FakeGateway()
    assert await gateway.send({"method": "ping", "params": {"nonce": "n"}}) == {
        "jsonrpc": "2.0",
        "id": None,
        "result": {"nonce": "n"},
    }
    answer = await gateway.send({"method": "nonsense"})
    assert (code_of(answer), answer["id"]) == (-32004, None)


@pytest.mark.parametrize("method", ["ping", "retrieve", "nonsense", "notifications/cancel", "notifications/brandNew"])
@pytest.mark.parametrize("path", [None, "info"])
async def test_notification_is_never_answered(method: str, path: str | None) -> None:
    """A message with `jsonrpc` and no id is not answered, whatever its method, and even at another method's path."""
    gateway = FakeGateway()
    assert await gateway.send({"jsonrpc": "2.0", "method": method, "params": {"query": 7}}, path) is None


async def test_compact_notification_is_one() -> None:
    """Without an id a message named `notifications/…` is a notification in the compact envelope, too."""
    assert await FakeGateway().send({"method": "notifications/cancel", "params": {"id": 1}}) is None


async def test_notification_with_an_id_is_refused() -> None:
    """`notifications/*` with an id is -32600, and says so (RCP §4.5)."""
    answer = await FakeGateway().send(
        {"jsonrpc": "2.0", "id": 3, "method": "notifications/cancel", "params": {"id": 1}}
    )
    assert (code_of(answer), answer["id"], answer["error"]["data"]) == (-32600, 3, {"field": "id"})


async def test_path_and_method_agree() -> None:
    """A request at another method's path is -32600 with its id; at its own, or at the base, it is answered."""
    gateway = FakeGateway()
    message = {"jsonrpc": "2.0", "id": 3, "method": "catalog/list"}
    assert "result" in await gateway.send(message, "catalog/list")
    assert "result" in await gateway.send(message, None)
    for path in ("catalog", "catalog/list/", "Catalog/list", "ping"):
        answer = await gateway.send(message, path)
        assert (code_of(answer), answer["id"]) == (-32600, 3)
        assert answer["error"]["data"] == {"field": "method"}


async def test_path_wins_over_an_unknown_method() -> None:
    """A message at the wrong path is malformed before its method is looked at."""
    message = {"jsonrpc": "2.0", "id": 3, "method": "nonsense"}
    assert code_of(await FakeGateway().send(message, "ping")) == -32600


# Gating


@pytest.mark.parametrize(
    "method", ["nonsense", "Retrieve", "retrieve/", "x-", "x-acme", "x-acme/", "x-/rank", "rpc.discover"]
)
async def test_what_is_not_rcp_is_unknown(method: str) -> None:
    """A method outside RCP is -32004, whatever its params."""
    assert code_of(await FakeGateway().ask(method, {"k": "many"})) == -32004


@pytest.mark.parametrize("method", [*sorted(GATES.keys() - {"retrieve", "catalog/list"}), "x-acme/rank"])
async def test_what_nobody_offers_is_missing(method: str) -> None:
    """A method of RCP that cannot be served is -32003, before its params are looked at."""
    assert code_of(await FakeGateway().ask(method, {"query": 7, "texts": {}})) == -32003


async def test_retrieve_without_a_retriever_is_missing_before_its_params() -> None:
    """If no engine retrieves, `retrieve` is -32003 even with params that are wrong as well (RCP §12)."""
    gateway = FakeGateway(FakeEngine("a", capabilities={"embed": {"dimension": 3}}))
    assert code_of(await gateway.ask("retrieve", {"query": 7})) == -32003
    assert code_of(await gateway.ask("retrieve", {"query": "q"})) == -32003


async def test_retrieve_before_anybody_was_reached_is_unavailable() -> None:
    """While engines have still to be reached, `retrieve` is -32010, for it may yet be offered."""
    gateway = FakeGateway(FakeEngine("a", reached=False), FakeEngine("b", capabilities={"embed": {}}))
    assert code_of(await gateway.ask("retrieve", {"query": "q"})) == -32010


@pytest.mark.parametrize(
    ("params", "code", "data"),
    [
        ({}, -32602, {"field": "query"}),
        ({"query": "q", "k": 0}, -32602, {"field": "k"}),
        ({"query": "q", "k": True}, -32602, {"field": "k"}),
        ({"query": "q", "mode": "vibes"}, -32005, {"option": "mode"}),
        ({"query": "q", "k": 0, "mode": "vibes"}, -32602, {"field": "k"}),
        ({"query": "q", "_meta": {"deadlineMs": 0}}, -32602, {"field": "_meta.deadlineMs"}),
        ({"query": "q", "_meta": {"deadlineMs": -5}}, -32602, {"field": "_meta.deadlineMs"}),
        ({"query": "q", "_meta": {"deadlineMs": "soon"}}, -32602, {"field": "_meta.deadlineMs"}),
        ({"query": "q", "_meta": []}, -32602, {"field": "_meta"}),
        ({"query": "q", "_meta": False}, -32602, {"field": "_meta"}),
        ({"query": "q", "_meta": "x"}, -32602, {"field": "_meta"}),
    ],
)
async def test_params_are_checked_after_gating(params: Json, code: int, data: Json) -> None:
    """Malformed params are -32602 with the field, unknown values -32005 with the option."""
    error = (await FakeGateway().ask("retrieve", params))["error"]
    assert (error["code"], error["data"]) == (code, data)


async def test_long_names_are_not_echoed_in_full() -> None:
    """A method name of any length makes no message of any length."""
    message = (await FakeGateway().ask("x" * 10_000))["error"]["message"]
    assert len(message) < 200


# The methods


@pytest.mark.parametrize(("theirs", "agreed"), [(None, 1), (1, 1), (2, 1), (99, 1)])
async def test_version_is_negotiated(theirs: int | None, agreed: int) -> None:
    """The version is the smaller of both; stateless, so any number of times."""
    gateway = FakeGateway()
    for _ in range(2):
        result = (await gateway.ask("initialize", {"protocolVersion": theirs, "client": {"name": "t"}}))["result"]
        assert result["protocolVersion"] == agreed
        assert result["server"] == {"name": "rcp-gateway", "version": "1.2.3"}
        assert result["_meta"]["x-gateway"] == {"id": "us-1234", "epoch": 1}


@pytest.mark.parametrize(
    ("theirs", "code"), [(0, -32002), (-1, -32002), ("1", -32602), (1.0, -32602), (True, -32602), ([1], -32602)]
)
async def test_version_that_cannot_be_spoken(theirs: Any, code: int) -> None:
    """Below 1 is -32002, and what is no integer is -32602."""
    assert code_of(await FakeGateway().ask("initialize", {"protocolVersion": theirs})) == code


async def test_info_is_the_same_as_initialize() -> None:
    """`info` says what `initialize` says, at any time."""
    gateway = FakeGateway()
    assert (await gateway.ask("info"))["result"] == (await gateway.ask("initialize"))["result"]


@pytest.mark.parametrize("nonce", ["n", "", 0, 1.5, False, [1, None], {"deep": {}}])
async def test_nonce_comes_back(nonce: Any) -> None:
    """`ping` echoes its nonce, whatever it is."""
    assert (await FakeGateway().ask("ping", {"nonce": nonce}))["result"] == {"nonce": nonce}


async def test_ping_without_a_nonce() -> None:
    """Without a nonce, or with null, there is none to echo."""
    gateway = FakeGateway()
    for params in ({}, {"nonce": None}, None):
        assert (await gateway.ask("ping", params))["result"] == {}


async def test_shutdown_ends_nothing() -> None:
    """Over HTTP `shutdown` is answered and the gateway goes on."""
    gateway = FakeGateway()
    assert (await gateway.ask("shutdown"))["result"] == {}
    assert (await gateway.ask("ping"))["result"] == {}


async def test_catalog_lists_who_is_known() -> None:
    """`catalog/list` lists the engines that have shaken hands."""
    gateway = FakeGateway(FakeEngine("b"), FakeEngine("a", priority=1), FakeEngine("c", reached=False))
    listed = (await gateway.ask("catalog/list"))["result"]["engines"]
    assert [engine["id"] for engine in listed] == ["a", "b"]
    assert listed[0]["server"] == {"name": "fake", "version": "1.0"}


async def test_retrieve_is_answered_for_all() -> None:
    """A `retrieve` comes back fused, with everybody in the report."""
    gateway = FakeGateway(FakeEngine("a", {"hits": hits("x", "y")}), FakeEngine("b", {"hits": hits("y")}))
    result = (await gateway.ask("retrieve", {"query": "q"}))["result"]
    assert [found["id"] for found in result["hits"]] == ["y", "x"]
    assert [engine["id"] for engine in result["_meta"]["x-gateway"]["engines"]] == ["a", "b", "off"]
    assert gateway.metric("requests_total", method="retrieve", outcome="ok") == 1
    assert gateway.metric("legs_total", engine="a", outcome="ok") == 1


async def test_meta_of_the_caller_is_divided() -> None:
    """What `_meta` says to the gateway stays here; the rest is passed on."""
    gateway = FakeGateway()
    meta = {"progressToken": 1, "session": "s", "deadlineMs": 9000, "federation": {"depth": 2}, "traceId": "t", "x": 1}
    await gateway.ask("retrieve", {"query": "q", "_meta": meta})
    (asked,) = gateway.engines[0].asked
    assert asked["_meta"] == {
        "traceId": "t",
        "x": 1,
        "deadlineMs": 2000,
        "federation": {"depth": 1, "path": ["us-1234"]},
    }


@pytest.mark.parametrize(
    ("stated", "forwarded"), [(500, 400), (60_000, 2900), (None, 2900)], ids=["caller's", "beyond ours", "none stated"]
)
def test_deadline_is_the_smaller_of_both(stated: int | None, forwarded: int) -> None:
    """A caller's deadline may only shorten ours (B27)."""

    async def story() -> None:
        gateway = FakeGateway(FakeEngine("docs", timeoutMs=60_000), retrieve={"deadline_ms": 3000})
        await gateway.ask("retrieve", {"query": "q", "_meta": None if stated is None else {"deadlineMs": stated}})
        (asked,) = gateway.engines[0].asked
        assert asked["_meta"]["deadlineMs"] == pytest.approx(forwarded, abs=1)

    virtually(story())


def test_no_time_to_ask_anybody() -> None:
    """A deadline that leaves nothing to pass on is -32014, and nobody is asked."""

    async def story() -> None:
        gateway = FakeGateway()
        answer = await gateway.ask("retrieve", {"query": "q", "_meta": {"deadlineMs": 1}})
        assert code_of(answer) == -32014
        assert gateway.engines[0].asked == []

    virtually(story())


async def test_repr_shows_requests_in_flight() -> None:
    """In an incident a dispatcher says how many requests can be called off, and whether it is ready."""
    shown = repr(FakeGateway().dispatcher)
    assert shown.startswith("<Dispatcher ")
    assert "0 requests of 0 sessions" in shown
    assert "<Readiness " in shown
