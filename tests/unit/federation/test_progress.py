"""What a caller hears of its question, notification by notification and over a whole retrieve."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.outcome import answered, failed
from app.federation.progress import call_ended, fused
from app.federation.retrieve import retrieve
from app.protocol.errors import CALL_KINDS, BackendUnavailable, BadStatus, LegTimeout, OptionUnsupported, RcpError
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, Json, call_of, hit, hits, members_of, never
from tests.support.virtual_time import virtually

ANSWERED = answered("docs", {"hits": hits("a", "b")}, 0.0351, 1)


@pytest.mark.parametrize("token", ["t", "", 0, 7, -1, 2**53])
def test_token_comes_back_as_it_was_sent(token: Any) -> None:
    """The token is echoed with its type and value."""
    for told in (call_ended(token, ANSWERED, 1, 2, None), fused(token, [ANSWERED])):
        assert told["progressToken"] == token
        assert type(told["progressToken"]) is type(token)


def test_engine_that_answered() -> None:
    """Its name, its hits and its time; the share of engines that have ended; the list so far."""
    assert call_ended("t", ANSWERED, 1, 4, [{"id": "a"}]) == {
        "progressToken": "t",
        "progress": 0.25,
        "stage": "recall",
        "message": "docs: 2 hits after 35 ms",
        "partial": {"hits": [{"id": "a"}]},
    }
    one = answered("docs", {"hits": hits("a")}, 0.001, 1)
    assert call_ended("t", one, 4, 4, [])["message"] == "docs: 1 hit after 1 ms"


def test_engine_that_failed() -> None:
    """Its name, the class of its failure and the rest of its note; no list while nobody has answered."""
    told = call_ended("t", failed("docs", LegTimeout("no answer"), 2.0), 2, 2, None)
    assert told["message"] == "docs: timeout after 2000 ms (1 attempt): no answer"
    assert told["progress"] == 1.0
    assert "partial" not in told


def test_fusing() -> None:
    """All that can be told is told: progress 1, and how many of how many answered."""
    told = fused(7, [ANSWERED, failed("x", BadStatus("503"), 0.1), ANSWERED])
    assert told == {"progressToken": 7, "progress": 1.0, "stage": "fuse", "message": "2 of 3 engines answered"}


# Over a whole retrieve


class Listening:
    """Keeps what it is told, and when it was opened."""

    ready = True

    def __init__(self) -> None:
        self.told: list[Any] = []

    def open(self) -> None:
        self.told.append("open")

    def send(self, progress: Mapping[str, Any]) -> None:
        self.told.append(progress)

    def log(self, line: Mapping[str, Any]) -> None:
        self.told.append(line)

    @property
    def lists(self) -> list[list[Any]]:
        """The ids of each list so far."""
        return [[found["id"] for found in told["partial"]["hits"]] for told in self.told[1:] if "partial" in told]


def after(seconds: float, then: Any) -> Any:
    """A script that waits so long."""

    async def play(params: Mapping[str, Any]) -> Any:
        await asyncio.sleep(seconds)
        if isinstance(then, Exception):
            raise then
        return then

    return play


def with_report(*engines: FakeEngine, **call: Any) -> tuple[Any, Listening]:
    """The result or error of one call, and what was told meanwhile."""

    async def story() -> tuple[Any, Listening]:
        listening = Listening()
        members = members_of(*engines)
        metrics = Metrics("test")
        metrics.declare_engines(members.ids(), CALL_KINDS)
        now = asyncio.get_running_loop().time()
        asked = call_of(now=now, **{"meta": {"progressToken": "t"}, **call})
        try:
            result: Any = (
                await retrieve(asked, members, GatewaySettings(), RetrieveInstrumentation(metrics), listening)
            ).result
        except RcpError as error:
            result = error
        return result, listening

    return virtually(story())


def test_every_engine_is_told_in_the_moment_it_ends() -> None:
    """One notification per engine in the order of arrival, a growing share, a list when it changed; then the fusing."""
    result, listening = with_report(
        FakeEngine("a", after(0.3, {"hits": hits("x", "y")})),
        FakeEngine("b", after(0.1, {"hits": hits("y")})),
        FakeEngine("c", after(0.2, BadStatus("503"))),
    )
    assert listening.told[0] == "open"
    told = listening.told[1:]
    assert [progress["message"].split(":")[0] for progress in told] == ["b", "c", "a", "2 of 3 engines answered"]
    assert [progress["progress"] for progress in told] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0, 1.0]
    assert [progress["stage"] for progress in told] == ["recall", "recall", "recall", "fuse"]
    assert all(progress["progressToken"] == "t" for progress in told)
    assert listening.lists == [["y"]]
    assert [found["id"] for found in result["hits"]] == ["y", "x"]


def test_list_so_far_is_cut_as_the_final_one() -> None:
    """`k`, `minScore`, `tokenBudget` and `includeText` hold for the lists on the way, too."""
    wide = hits(*range(10))
    last = FakeEngine("b", after(0.1, BadStatus("503")))
    _, listening = with_report(FakeEngine("a", {"hits": wide}), last, k=3)
    assert listening.lists == [[0, 1, 2]]
    result, listening = with_report(FakeEngine("a", {"hits": wide}), last, minScore=0.33, includeText=False)
    assert listening.lists == [[0]]
    assert listening.told[1]["partial"]["hits"] == result["hits"]
    assert "text" not in listening.told[1]["partial"]["hits"][0]
    _, listening = with_report(FakeEngine("a", {"hits": wide}), last, tokenBudget=1)
    assert listening.lists == [[0]]


def test_being_told_changes_no_answer() -> None:
    """The answer is the one that a caller without a listener gets, apart from times."""

    def told(result: Json) -> Json:
        del result["usage"]["latencyMs"]
        for entry in result["_meta"]["x-gateway"]["engines"]:
            del entry["tookMs"]
        return result

    def engines() -> list[FakeEngine]:
        return [
            FakeEngine("a", {"hits": [hit("x", 3, meta={"n": 1}), hit("y", 2)]}),
            FakeEngine("b", after(0.1, {"hits": [hit("y", 9, text="long")]})),
        ]

    async def plain() -> Any:
        members = members_of(*engines())
        metrics = Metrics("test")
        metrics.declare_engines(members.ids(), CALL_KINDS)
        call = call_of(now=asyncio.get_running_loop().time(), meta={"progressToken": "t"})
        return (await retrieve(call, members, GatewaySettings(), RetrieveInstrumentation(metrics))).result

    streamed, _ = with_report(*engines())
    assert told(streamed) == told(virtually(plain()))


def test_nothing_is_told_of_what_was_never_asked() -> None:
    """A request that nobody can honour is refused before anything is told."""
    error, listening = with_report(FakeEngine("a"), unit="page")
    assert isinstance(error, OptionUnsupported)
    assert listening.told == []


def test_everybody_failed() -> None:
    """Each failure is told, without a list; there is no fusing before the error."""
    error, listening = with_report(FakeEngine("a", BadStatus("503")), FakeEngine("b", BadStatus("500")))
    assert isinstance(error, BackendUnavailable)
    assert [told["stage"] for told in listening.told[1:]] == ["recall", "recall"]
    assert listening.lists == []


def test_engine_calls_ended_by_a_required_failure_are_not_told() -> None:
    """When a required engine fails the others did not end, they were ended; the failure is the last that is told."""
    error, listening = with_report(
        FakeEngine("slow", never), FakeEngine("quick"), FakeEngine("must", after(0.1, BadStatus("503")), required=True)
    )
    assert isinstance(error, RcpError)
    assert [told["message"].split(":")[0] for told in listening.told[1:]] == ["quick", "must"]


def test_listener_that_breaks_hurts_nobody() -> None:
    """A listener that raises costs what it would have heard, and no engine and no answer."""

    class Broken(Listening):
        def send(self, progress: Mapping[str, Any]) -> None:
            if progress["stage"] == "recall":
                raise ZeroDivisionError

        def log(self, line: Mapping[str, Any]) -> None:
            raise AssertionError(line)

    async def story() -> Any:
        members = members_of(FakeEngine("a"), FakeEngine("b", after(1, {"hits": []})))
        metrics = Metrics("test")
        metrics.declare_engines(members.ids(), CALL_KINDS)
        call = call_of(now=asyncio.get_running_loop().time())
        return (await retrieve(call, members, GatewaySettings(), RetrieveInstrumentation(metrics), Broken())).result

    result = virtually(story(), faults=True)
    assert [found["id"] for found in result["hits"]] == ["a", "b", "c"]
    assert "degraded" not in result["_meta"]
