"""One engine answers: who is asked next after which failure, and what the answer and the error tell of the others."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.federation.candidates import Candidates, UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forward import forward, plain
from app.federation.instrumentation import RetrieveInstrumentation
from app.protocol.advertisement import Advertisement
from app.protocol.errors import (
    CALL_KINDS,
    BackendUnavailable,
    BadStatus,
    CapabilityMissing,
    ConnectFailed,
    DeadlineExceeded,
    ForeignError,
    InvalidParams,
    LegError,
    LegRateLimited,
    LegTimeout,
    OptionUnsupported,
    Overloaded,
    ProtocolViolation,
    RcpError,
    Refused,
    ResponseTooLarge,
    TlsFailed,
)
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, members_of, method_call_of, never
from tests.support.virtual_time import virtually

METHOD = "query/transform"
CAN: Json = {"transform": {}}


async def asked(
    *engines: FakeEngine,
    params: Json | None = None,
    idempotent: bool = True,
    names: list[str] | None = None,
    metrics: Metrics | None = None,
    fit: Any = None,
    disabled: tuple[str, ...] = (),
    **call: Any,
) -> Json:
    """The result of one call to these engines, in this order."""
    members = members_of(*engines, disabled=disabled)
    now = asyncio.get_running_loop().time()
    made = method_call_of(METHOD, params or {}, now=now, **call)
    options = read_gateway(None if names is None else {"engines": names})
    candidates = candidates_for(made, members, "transform", options, *([] if fit is None else [fit]))
    metrics = metrics or Metrics("test")
    metrics.declare_engines(members.ids(), CALL_KINDS)
    question = plain(METHOD, params or {}, idempotent=idempotent)
    return await forward(made, candidates, members, GatewaySettings(), RetrieveInstrumentation(metrics), question)


def told(result: Json) -> dict[str, str]:
    """Engine id -> its status, or why it failed or was not asked."""
    return {entry["id"]: entry.get("reason", entry["status"]) for entry in result["_meta"]["x-gateway"]["engines"]}


async def error_of(*engines: FakeEngine, **call: Any) -> RcpError:
    """The error of one call."""
    with pytest.raises(RcpError) as error:
        await asked(*engines, **call)
    return error.value


def able(name: str, answer: Any, **more: Any) -> FakeEngine:
    """An engine that advertises the method."""
    return FakeEngine(name, answer, **{"capabilities": CAN, **more})


async def test_the_first_answers() -> None:
    """One engine is asked, and the report says why the others were not."""
    first, second = able("a", {"x": 1}), able("b", {"x": 2})
    result = await asked(first, second, FakeEngine("c"), FakeEngine("d", reached=False), disabled=("e",))
    assert result["x"] == 1
    assert second.asked == []
    assert told(result) == {"a": "ok", "b": "not_needed", "c": "capability", "d": "unreached", "e": "disabled"}
    assert "degraded" not in result["_meta"]
    assert "hits" not in result["_meta"]["x-gateway"]["engines"][0]
    assert first.methods == [METHOD]


NEXT: list[LegError] = [
    ConnectFailed("x"),
    TlsFailed("x"),
    LegTimeout("x"),
    BadStatus("HTTP 503"),
    ProtocolViolation("x"),
    ResponseTooLarge("x"),
    Overloaded("x"),
    LegRateLimited("x"),
    *(Refused("x", code=code) for code in (-32010, -32011, -32014, -32001, -32003, -32004, -32012)),
]


@pytest.mark.parametrize("fault", NEXT, ids=repr)
async def test_the_next_answers_for_one_that_cannot(fault: LegError) -> None:
    """A transport failure, or an engine that says it cannot serve now or at all, lets the next be asked; it is told."""
    metrics = Metrics("test")
    result = await asked(able("a", fault), able("b", {"x": 2}), metrics=metrics)
    assert result["x"] == 2
    assert result["_meta"]["degraded"] == ["a"]
    assert told(result) == {"a": fault.kind, "b": "ok"}
    count = metrics.registry.get_sample_value
    assert count("rcp_gateway_legs_total", {"engine": "a", "outcome": fault.kind}) == 1
    assert count("rcp_gateway_legs_total", {"engine": "b", "outcome": "ok"}) == 1


@pytest.mark.parametrize("code", [-32602, -32005, -32013, -32015, -32016, -31999])
async def test_a_refusal_of_the_call_itself_is_the_answer(code: int) -> None:
    """What is wrong with the call would be wrong everywhere: nobody else is asked, and the engine's code stands."""
    fault = Refused(f"{code} no", code=code)
    fault.culprit = {"field": "n"}
    second = able("b", {})
    error = await error_of(able("a", FailsWith(fault)), second)
    assert isinstance(error, ForeignError)
    assert (error.code, error.data["field"], error.data["retryable"]) == (code, "n", False)
    assert "'a'" in error.message
    assert second.asked == []


class FailsWith:
    """A script that raises this very fault."""

    def __init__(self, fault: LegError) -> None:
        self._fault = fault

    async def __call__(self, params: Mapping[str, Any]) -> Any:
        raise self._fault


@pytest.mark.parametrize(
    ("fault", "goes_on"),
    [
        (ConnectFailed("x"), True),
        (TlsFailed("x"), True),
        (Overloaded("x"), True),
        (LegRateLimited("x"), True),
        (Refused("x", code=-32010), True),
        (Refused("x", code=-32014), False),
        (LegTimeout("x"), False),
        (BadStatus("HTTP 503"), False),
        (ProtocolViolation("x"), False),
        (ResponseTooLarge("x"), False),
    ],
    ids=repr,
)
async def test_what_may_be_done_already_is_not_asked_elsewhere(fault: LegError, goes_on: bool) -> None:
    """A call that is not idempotent goes on only if no byte was sent, or the engine said that it did nothing."""
    first, second = able("a", fault), able("b", {"x": 2})
    if goes_on:
        assert (await asked(first, second, idempotent=False))["x"] == 2
    else:
        assert (await error_of(first, second, idempotent=False)).code == -32010
        assert second.asked == []
    assert first.idempotent == [False]


async def test_nobody_answered() -> None:
    """Every candidate failed: -32010 with each failure, and when it may be worth asking again."""
    error = await error_of(able("a", LegRateLimited("later", retry_after_ms=70)), able("b", BadStatus("HTTP 500")))
    assert isinstance(error, BackendUnavailable)
    assert error.data["retryAfterMs"] == 70
    assert [note.partition(":")[0] for note in error.data["notes"]] == ["a", "b"]


def test_the_deadline_bounds_all_candidates_together() -> None:
    """A hanging engine leaves the next what is left; when the caller's time is over the answer is -32014."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        first, second = able("a", never, timeoutMs=1000), able("b", {"x": 2})
        first_deadlines = []
        ask = first.call

        async def call(method: str, params: Any, deadline: float, **more: Any) -> Any:
            first_deadlines.append(deadline - loop.time())
            async with asyncio.timeout_at(deadline):
                return await ask(method, params, deadline, **more)

        async def late(*given: Any, **more: Any) -> Any:
            try:
                return await call(*given, **more)
            except TimeoutError:
                raise LegTimeout("no answer") from None

        first.call = late  # type: ignore[method-assign]
        result = await asked(first, second)
        assert result["x"] == 2
        assert first_deadlines == [1.0]
        assert first.asked[0]["_meta"]["deadlineMs"] == 1000
        assert second.asked[0]["_meta"]["deadlineMs"] == 2000
        error = await error_of(first, meta={"deadlineMs": 500})
        assert isinstance(error, DeadlineExceeded)
        assert first.asked[1]["_meta"]["deadlineMs"] < 500
        error = await error_of(first, meta={"deadlineMs": 1})
        assert isinstance(error, DeadlineExceeded)
        assert len(first.asked) == 2

    virtually(story())


async def test_meta_of_a_call_is_handed_on_as_for_retrieve() -> None:
    """One level less deep, our identity in the path, what is not ours as it is, and never a progress token."""
    engine = able("a", {})
    meta = {"federation": {"depth": 2, "path": ["them"]}, "traceId": "t", "progressToken": 7, "x-acme": 1}
    await asked(engine, meta=meta)
    sent = engine.asked[0]["_meta"]
    assert sent.pop("deadlineMs") == 2000
    assert sent == {"federation": {"depth": 1, "path": ["them", "us"]}, "traceId": "t", "x-acme": 1}


@pytest.mark.parametrize("federation", [{"depth": 0, "path": []}, {"depth": 2, "path": ["us"]}])
async def test_a_call_that_may_go_no_further_is_an_error(federation: Json) -> None:
    """Depth used up, or we are in the path already: there is no true answer without an engine, so it is -32010."""
    engine = able("a", {})
    error = await error_of(engine, meta={"federation": federation})
    assert isinstance(error, BackendUnavailable)
    assert error.data["retryable"] is False
    assert engine.asked == []


async def test_whoever_is_in_the_path_is_passed_over() -> None:
    """A gateway that the call came through is not asked; if nobody else could answer, that is the error."""
    loop = able("a", {"x": 1}, gateway_id="them")
    result = await asked(loop, able("b", {"x": 2}), meta={"federation": {"depth": 2, "path": ["them"]}})
    assert result["x"] == 2
    assert told(result)["a"] == "loop"
    error = await error_of(loop, meta={"federation": {"depth": 2, "path": ["them"]}})
    assert isinstance(error, BackendUnavailable)


async def test_a_call_may_name_its_engines() -> None:
    """Only those named are asked; one that was never reached counts as failed, an unknown name is -32602."""
    first, second, down = able("a", {"x": 1}), able("b", {"x": 2}), FakeEngine("d", reached=False, down_reason="no")
    result = await asked(first, second, down, names=["d", "b"])
    assert result["x"] == 2
    assert result["_meta"]["degraded"] == ["d"]
    assert told(result) == {"a": "not_selected", "b": "ok", "d": "unreached"}
    error = await error_of(first, down, names=["d"])
    assert isinstance(error, BackendUnavailable)
    assert "d: unreached" in error.data["detail"]
    error = await error_of(first, names=["zz"])
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "x-gateway.engines"
    error = await error_of(first, FakeEngine("c"), names=["c"])
    assert isinstance(error, BackendUnavailable)


async def test_nobody_offers_it() -> None:
    """Without an engine that advertises the capability it is -32003."""
    assert isinstance(await error_of(FakeEngine("a")), CapabilityMissing)


def misfits(**reasons: UnfitEngine) -> Any:
    """A fit that knows these engines not to."""

    def fit(engine: Engine, said: Advertisement) -> UnfitEngine | None:
        return reasons.get(engine.id)

    return fit


async def test_an_engine_that_does_not_fit_is_passed_over() -> None:
    """Nobody fits: what is too much comes before an option that nobody has, as one engine would say it."""
    option, limit = UnfitEngine("no method m", option="method"), UnfitEngine("at most 3", field="passages")
    first, second = able("a", {"x": 1}), able("b", {"x": 2})
    result = await asked(first, second, fit=misfits(a=option))
    assert result["x"] == 2
    assert told(result)["a"] == "option"
    assert "degraded" not in result["_meta"]
    error = await error_of(first, second, fit=misfits(a=option, b=option))
    assert isinstance(error, OptionUnsupported)
    assert error.data["option"] == "method"
    error = await error_of(first, second, fit=misfits(a=option, b=limit))
    assert isinstance(error, InvalidParams)
    assert error.data["field"] == "passages"


async def test_what_the_engine_put_in_meta_is_kept() -> None:
    """Its own keys stay beside the report; its own report and what it dropped do not."""
    sent = {"x": 1, "_meta": {"theirs": 1, "x-gateway": {"id": "other"}, "degraded": ["theirs"]}}
    result = await asked(able("a", sent))
    assert result["_meta"]["theirs"] == 1
    assert result["_meta"]["x-gateway"]["id"] == "us"
    assert "degraded" not in result["_meta"]
    assert sent["_meta"]["x-gateway"] == {"id": "other"}  # type: ignore[index]


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    """Whoever leaves cancels the call to the engine, and the leg is counted as cancelled."""
    metrics = Metrics("test")
    engine = able("a", never)
    task = asyncio.create_task(asked(engine, metrics=metrics))
    while not engine.asked:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.ended == ["cancelled"]
    count = metrics.registry.get_sample_value
    assert count("rcp_gateway_legs_total", {"engine": "a", "outcome": "cancelled"}) == 1


def test_candidates_are_printable() -> None:
    """Explaining a call is showing its candidates."""
    assert "capability='transform'" in repr(Candidates("transform", ()))
