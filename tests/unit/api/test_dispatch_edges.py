"""The edge of a request and of a batch: what is counted and logged, what breaks, and what is cancelled."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.api.audit_log import METHODS
from app.protocol.errors import BadStatus
from tests.support.fake_engine import FakeEngine, never
from tests.support.fake_gateway import FakeGateway, Json
from tests.support.log_lines import LogLines, own_log
from tests.support.virtual_time import turns, virtually


@pytest.fixture(autouse=True)
def log() -> Iterator[LogLines]:
    """What is logged meanwhile; none of it goes to the terminal."""
    with own_log() as lines:
        yield lines


def code_of(answer: Json) -> int:
    """The code of an error answer."""
    code: int = answer["error"]["code"]
    return code


async def test_partial_answer_counts_as_degraded(log: LogLines) -> None:
    """An answer without one of its engines is counted and logged as degraded."""
    gateway = FakeGateway(FakeEngine("a"), FakeEngine("b", BadStatus("503")))
    result = (await gateway.ask("retrieve", {"query": "q"}))["result"]
    assert result["_meta"]["degraded"] == ["b"]
    assert gateway.metric("requests_total", method="retrieve", outcome="degraded") == 1
    assert log.lines[-1]["outcome"] == "degraded"


async def test_error_is_counted_by_its_code(log: LogLines) -> None:
    """Each error is counted by its code and logged with it (B113)."""
    gateway = FakeGateway(FakeEngine("a", BadStatus("503")))
    assert code_of(await gateway.ask("retrieve", {"query": "q"})) == -32010
    assert code_of(await gateway.ask("nonsense")) == -32004
    assert gateway.metric("errors_total", code="-32010") == 1
    assert gateway.metric("errors_total", code="-32004") == 1
    assert gateway.metric("requests_total", method="retrieve", outcome="error") == 1
    assert gateway.metric("requests_total", method="other", outcome="error") == 1
    assert [(line["method"], line["code"]) for line in log.lines] == [("retrieve", -32010), ("other", -32004)]


async def test_fault_of_ours_is_an_internal_error(log: LogLines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks inside is -32603 to the caller without a word of why; the log has it, with the same id."""

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("app.api.methods.retrieve", broken)
    gateway = FakeGateway()
    answer = await gateway.ask("retrieve", {"query": "q"})
    assert code_of(answer) == -32603
    assert "secret" not in json.dumps(answer)
    first, second = log.lines
    assert (first["event"], first["request_id"]) == ("internal_error", "r-1")
    assert "ZeroDivisionError: secret" in first["exception"]
    assert (second["event"], second["outcome"], second["code"]) == ("request", "error", -32603)
    assert gateway.metric("requests_in_flight") == 0


async def test_one_line_per_request_and_no_text(log: LogLines) -> None:
    """Each request is one line with its id, method, outcome and time, and with no word of query or hits."""
    await FakeGateway().ask("retrieve", {"query": "SECRET question"})
    (line,) = log.lines
    del line["timestamp"]
    assert line.pop("ms") >= 0
    assert line.pop("bytes") > 100
    assert line == {
        "event": "request",
        "level": "info",
        "request_id": "r-1",
        "method": "retrieve",
        "outcome": "ok",
        "code": None,
        "asked": ["docs"],
        "answered": 1,
        "hits": 3,
    }
    assert "SECRET" not in log.text
    assert "text of a" not in log.text


async def test_cancelled_request_is_counted_as_such(log: LogLines) -> None:
    """A request that is cancelled takes its legs with it and is counted and logged as cancelled."""
    gateway = FakeGateway(FakeEngine("docs", never))
    asking = asyncio.create_task(gateway.ask("retrieve", {"query": "q"}))
    await turns()
    assert gateway.metric("requests_in_flight") == 1
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert gateway.engines[0].ended == ["cancelled"]
    assert gateway.metric("requests_in_flight") == 0
    assert gateway.metric("requests_total", method="retrieve", outcome="cancelled") == 1
    assert gateway.metric("legs_total", engine="docs", outcome="cancelled") == 1
    assert log.lines[-1]["outcome"] == "cancelled"


async def test_invented_methods_add_no_series() -> None:
    """Method names that callers invent are one series (B109)."""
    gateway = FakeGateway()
    before = sum(len(family.samples) for family in gateway.state.metrics.registry.collect())
    for number in range(200):
        await gateway.ask(f"x-acme/{number}")
        await gateway.ask(f"nonsense/{number}")
    assert sum(len(family.samples) for family in gateway.state.metrics.registry.collect()) == before
    assert "x-acme/rank" not in METHODS


# Batches

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
SAID = {"jsonrpc": "2.0", "method": "ping"}


async def test_empty_batch_is_one_error() -> None:
    """`[]` is one -32600 with id null, not a list (B78)."""
    gateway = FakeGateway()
    answer = await gateway.batch([])
    assert (code_of(answer), answer["id"]) == (-32600, None)
    assert gateway.metric("errors_total", code="-32600") == 1


async def test_batch_of_notifications_is_not_answered() -> None:
    """Only notifications: nothing at all (B78)."""
    assert await FakeGateway().batch([SAID, SAID]) is None


async def test_batch_of_rubbish() -> None:
    """Each member that is no request is a -32600 of its own; a nested batch is one of them (B78)."""
    answers = await FakeGateway().batch([1, "x", None, [PING], {}])
    assert [(code_of(answer), answer["id"]) for answer in answers] == [(-32600, None)] * 5


async def test_mixed_batch() -> None:
    """Requests are answered, notifications are not, a bad member spoils nothing, and equal ids are both answered."""
    answers = await FakeGateway().batch(
        [PING, SAID, 7, {**PING, "id": "1"}, PING, {**PING, "id": 2, "method": "nonsense"}]
    )
    assert [answer["id"] for answer in answers] == [1, None, "1", 1, 2]
    assert ["result" in answer for answer in answers] == [True, False, True, True, False]


async def test_batch_beyond_the_limit_is_one_error() -> None:
    """More members than allowed are one -32602 that names the limit, and none of them runs."""
    gateway = FakeGateway(server={"max_batch": 2})
    assert len(await gateway.batch([PING, PING])) == 2
    answer = await gateway.batch([PING, PING, PING])
    assert (code_of(answer), answer["id"], answer["error"]["data"]) == (-32602, None, {"field": "batch"})
    assert "2" in answer["error"]["message"]
    assert gateway.metric("errors_total", code="-32602") == 1
    assert gateway.metric("requests_total", method="ping", outcome="ok") == 2


async def test_members_agree_with_the_path() -> None:
    """At a method's path every member must name that method."""
    answers = await FakeGateway().batch([PING, {**PING, "id": 2, "method": "info"}], "ping")
    assert ["result" in answer for answer in answers] == [True, False]
    assert code_of(answers[1]) == -32600


def test_members_run_at_the_same_time() -> None:
    """A batch takes as long as its slowest member."""

    async def slowly(params: Any) -> Any:
        await asyncio.sleep(1)
        return {"hits": []}

    async def story() -> None:
        gateway = FakeGateway(FakeEngine("docs", slowly))
        started = asyncio.get_running_loop().time()
        question = {"jsonrpc": "2.0", "method": "retrieve", "params": {"query": "q"}}
        answers = await gateway.batch([{**question, "id": number} for number in range(5)])
        assert [answer["id"] for answer in answers] == list(range(5))
        assert asyncio.get_running_loop().time() - started == pytest.approx(1)

    virtually(story())


async def test_members_have_ids_of_their_own_in_the_log(log: LogLines) -> None:
    """Each member's line carries the batch's request id and its place."""
    await FakeGateway().batch([PING, SAID, PING])
    assert [line["request_id"] for line in log.lines] == ["r-1.0", "r-1.2"]


async def test_cancelled_batch_cancels_every_member() -> None:
    """A batch whose caller leaves takes every member with it, and ends when each is gone."""
    gateway = FakeGateway(FakeEngine("docs", never))
    question = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
    asking = asyncio.create_task(gateway.batch([question] * 3))
    await turns()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert gateway.engines[0].ended == ["cancelled"] * 3
    assert asyncio.all_tasks() == {asyncio.current_task()}
