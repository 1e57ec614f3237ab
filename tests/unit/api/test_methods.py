"""The table of methods: what is offered, in which order it is refused, and the one Call that is made for all."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.api.methods import ANSWERED, BROADCAST, FEDERATED, STREAMED, RpcMethods
from app.protocol.method_names import GATES, UNGATED
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeGateway
from tests.support.log_lines import own_log


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No line of these tests goes to the terminal."""
    with own_log():
        yield


def test_every_method_that_is_answered_is_one_of_rcp() -> None:
    """And each has series of its own; vendors' methods share theirs."""
    assert FEDERATED.keys() | BROADCAST.keys() <= GATES.keys()
    assert BROADCAST.keys() >= STREAMED
    assert UNGATED | FEDERATED.keys() | BROADCAST.keys() | {"retrieve", "catalog/list", "x-*"} == ANSWERED


@pytest.mark.parametrize(
    ("method", "code"),
    [("x-acme/", -32004), ("x-/do", -32004), ("x-acme", -32004), ("embed/", -32004), ("x-acme/do", -32003)],
)
async def test_a_name_is_refused_before_anything_else(method: str, code: int) -> None:
    """-32004 for what is no method at all wins over -32003, and both over wrong params and a wrong `_meta`."""
    gateway = FakeGateway(FakeEngine("a"))
    answer = await gateway.ask(method, {"x-gateway": 7, "_meta": 7})
    assert answer["error"]["code"] == code


async def test_vendors_methods_share_their_series() -> None:
    """A vendor's method that is answered is counted under `x-*`, whatever its name."""
    gateway = FakeGateway(FakeEngine("a", {"x": 1}, capabilities={"x-acme": {}}))
    for name in ("one", "two"):
        assert (await gateway.ask(f"x-acme/{name}"))["result"]["x"] == 1
    assert gateway.metric("requests_total", method="x-*", outcome="ok") == 2
    assert gateway.engines[0].methods == ["x-acme/one", "x-acme/two"]


async def test_a_call_carries_what_the_caller_said() -> None:
    """Deadline, path and the rest of `_meta`, for any method, and never more time than the settings allow."""
    engine = FakeEngine("a", {"queries": []}, capabilities={"transform": {"methods": ["hyde"]}})
    gateway = FakeGateway(engine)
    params: Any = {"query": "q", "method": "hyde"}
    meta = {"deadlineMs": 10**9, "session": "s", "logLevel": "debug", "progressToken": 1, "traceId": "t"}
    assert (await gateway.ask("query/transform", {**params, "_meta": meta}))["result"]["queries"] == []
    assert engine.asked[0]["_meta"].keys() == {"deadlineMs", "federation", "traceId"}
    assert engine.asked[0]["_meta"]["federation"] == {"depth": 2, "path": ["us-1234"]}
    answer = await gateway.ask("query/transform", {**params, "_meta": {"deadlineMs": "soon"}})
    assert answer["error"]["data"]["field"] == "_meta.deadlineMs"


def test_the_table_can_be_looked_at() -> None:
    """Its size."""
    assert repr(RpcMethods(FakeGateway().state)) == f"<RpcMethods, {len(ANSWERED) - 1} methods>"
