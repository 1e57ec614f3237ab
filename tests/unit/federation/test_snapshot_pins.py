"""Which snapshots engines served, and whether they had to serve others."""

from typing import Any

import pytest

from app.federation.outcome import Outcome, answered, failed
from app.federation.planner import EngineCall
from app.federation.result_set import not_served, versions_of
from app.protocol.errors import LegTimeout, Refused
from tests.support.fake_engine import FakeEngine, hits


def engine_call(engine: str, pinned: str | None = None, snapshots: bool = True) -> EngineCall:
    """A leg of an engine with or without snapshots."""
    made = FakeEngine(engine, capabilities={"retrieve": {"snapshots": snapshots}})
    return EngineCall(made, {}, 1.0, 1.0, 1.0, 20, None, pinned)


def served(engine: str, version: Any) -> Outcome:
    return answered(engine, {"hits": hits("a"), "indexVersion": version}, 0.01, 1)


LATE = failed("b", LegTimeout("no answer"), 0.1)


@pytest.mark.parametrize(
    ("engine_calls", "outcomes", "versions"),
    [
        ([engine_call("a"), engine_call("b")], [served("a", "1"), served("b", "2")], {"a": "1", "b": "2"}),
        ([engine_call("a"), engine_call("b")], [served("a", "1"), LATE], {"a": "1"}),
        ([engine_call("a"), engine_call("b")], [served("a", "1"), served("b", None)], None),
        ([engine_call("a"), engine_call("b", snapshots=False)], [served("a", "1"), served("b", "2")], None),
        ([engine_call("a", "1")], [served("a", None)], {"a": "1"}),
        ([engine_call("a")], [served("a", 7)], None),
    ],
)
def test_versions_are_told_if_all_have_them(
    engine_calls: list[EngineCall], outcomes: list[Outcome], versions: Any
) -> None:
    """Every engine asked must have snapshots, and every answer name one, unless it was pinned to it."""
    assert versions_of(engine_calls, outcomes) == versions


def test_what_was_served_as_pinned_is_no_error() -> None:
    """The pinned version, or silence about it, is as it should be; engines without a pin may serve what they like."""
    engine_calls = [engine_call("a", "1"), engine_call("b")]
    assert not_served(engine_calls, [served("a", "1"), served("b", "9")]) is None
    assert not_served(engine_calls, [served("a", None), LATE]) is None


@pytest.mark.parametrize(
    ("outcome", "retryable", "detail"),
    [
        (failed("a", LegTimeout("no answer"), 0.1), True, "timeout"),
        (failed("a", Refused("-32010 gone", code=-32010), 0.1), False, "gone"),
        (served("a", "2"), False, "another"),
    ],
)
def test_what_was_not_served_is_unavailable(outcome: Outcome, retryable: bool, detail: str) -> None:
    """-32010 names the engine and says why, and whether it is worth another try."""
    error = not_served([engine_call("a", "1")], [outcome])
    assert error is not None
    assert error.code == -32010
    assert "'a'" in error.message
    assert error.data["retryable"] is retryable
    assert detail in error.data["detail"]
