"""What became of a leg, what is dropped of what an engine sent, and which error the whole comes to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.outcome import (
    MAX_HITS,
    MAX_NOTES,
    Outcome,
    answered,
    cancelled,
    degraded,
    failed,
    failure_line,
    no_engine_answered,
    notes,
    report,
    required_failed,
    skipped,
)
from app.protocol.errors import (
    CALL_KINDS,
    MAX_MESSAGE,
    BackendUnavailable,
    BadStatus,
    ConnectFailed,
    DeadlineExceeded,
    LegError,
    LegRateLimited,
    LegTimeout,
    Overloaded,
    ProtocolViolation,
    Refused,
    ResponseTooLarge,
)
from tests.support.fake_engine import hit


def heard(*sent: Any, **more: Any) -> Outcome:
    """The outcome of an engine that sent these hits."""
    return answered("docs", {"hits": list(sent), **more}, 0.0125, 1)


# What is kept of an answer


def test_answer_in_order_is_kept_as_it_is() -> None:
    """Nothing is copied or dropped of an answer that is in order."""
    sent = [hit("a", 2.0, confidence=0.9), hit(7, 1, confidence=0.0), hit(2**63, -3.25, confidence=1.0)]
    outcome = answered("docs", {"hits": sent, "usage": {"candidates": 50, "reranked": 20}}, 0.0125, 2)
    assert outcome.hits is sent
    assert (outcome.status, outcome.took, outcome.attempts) == ("ok", 0.0125, 2)
    assert (outcome.candidates, outcome.reranked, outcome.malformed, outcome.notes) == (50, 20, 0, ())


def test_empty_answer_is_an_answer() -> None:
    """No hits is a success (B32)."""
    outcome = heard()
    assert (outcome.status, list(outcome.hits), outcome.notes) == ("ok", [], ())


@pytest.mark.parametrize("hits", [None, {}, "none", 3, {"0": {"id": 1, "score": 1}}])
def test_answer_without_hits_is_a_protocol_fault(hits: Any) -> None:
    """A result whose `hits` is no array fails its engine (decision 7)."""
    with pytest.raises(ProtocolViolation):
        answered("docs", {"hits": hits}, 0.0, 1)
    with pytest.raises(ProtocolViolation):
        answered("docs", {}, 0.0, 1)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(None, id="null"),
        pytest.param("a", id="string"),
        pytest.param(["a", 1.0], id="array"),
        pytest.param(7, id="number"),
        pytest.param({}, id="empty"),
        pytest.param({"score": 1.0}, id="no id"),
        pytest.param({"id": None, "score": 1.0}, id="null id"),
        pytest.param({"id": True, "score": 1.0}, id="boolean id (B20)"),
        pytest.param({"id": ["a"], "score": 1.0}, id="array as id"),
        pytest.param({"id": "a"}, id="no score"),
        pytest.param({"id": "a", "score": None}, id="null score (B73)"),
        pytest.param({"id": "a", "score": "1.0"}, id="score as a string"),
        pytest.param({"id": "a", "score": True}, id="score as a boolean"),
    ],
)
def test_malformed_hit_is_dropped_with_a_note(bad: Any) -> None:
    """A hit without an id or a number for a score is dropped and counted; its neighbours stay in order."""
    outcome = heard(hit("x", 2.0), bad, hit("y", 1.0))
    assert [kept["id"] for kept in outcome.hits] == ["x", "y"]
    assert outcome.malformed == 1
    assert outcome.notes == ("docs: 1 malformed hit(s) dropped (a hit needs a usable id and a numeric score)",)


@pytest.mark.parametrize("kind", ["string", "integer", "float"])
def test_each_kind_of_id_is_fine(kind: str) -> None:
    """An id may be a string or any number."""
    made: Any = {"string": "1", "integer": 1, "float": 1.0}[kind]
    assert heard(hit(made)).malformed == 0


@pytest.mark.parametrize("confidence", [1.0001, -0.1, 2, True, "0.9", [0.5], None, 0.5])
def test_confidence_is_not_judged_here(confidence: Any) -> None:
    """Whatever its confidence, a hit stays as it is; what a confidence is worth the blend decides."""
    sent = hit("a", confidence=confidence)
    outcome = heard(sent)
    assert outcome.hits == [sent]
    assert outcome.hits[0] is sent
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["asked without mmr"], ("docs: asked without mmr",)),
        (["a\nb", 7, " ", None, "c" * 900], ("docs: a b", f"docs: {'c' * (MAX_MESSAGE - 1)}…")),
        ([], ()),
        ("text", ()),
        (None, ()),
        (["n"] * 12, ("docs: n",) * MAX_NOTES + ("docs: 2 more note(s)",)),
    ],
)
def test_what_an_engine_notes_is_passed_on(said: Any, told: tuple[str, ...]) -> None:
    """Behind its id, each in one line of bounded length, and no more than ten; what is no text is none."""
    assert heard(usage={"notes": said}).notes == told


def test_its_notes_come_after_ours() -> None:
    """What was left out of its answer is said first."""
    first, second = heard({}, usage={"notes": ["n"]}).notes
    assert (first.startswith("docs: 1 malformed"), second) == (True, "docs: n")


def test_excess_is_cut_off_with_a_note() -> None:
    """However many hits an engine sends, only so many are looked at."""
    outcome = heard(*({"id": number, "score": 1.0} for number in range(MAX_HITS + 5)))
    assert len(outcome.hits) == MAX_HITS
    assert outcome.excess == 5
    assert outcome.notes == (f"docs: 5 hit(s) beyond the first {MAX_HITS} dropped",)
    assert heard(*({"id": number, "score": 1.0} for number in range(MAX_HITS))).excess == 0


@pytest.mark.parametrize("usage", [None, [], "much", {"candidates": -1}, {"candidates": True}, {"candidates": 1.5}])
def test_candidates_are_never_fewer_than_hits(usage: Any) -> None:
    """Whatever an engine says of its candidates, they are at least what it returned (B11)."""
    outcome = heard(hit("a"), hit("b"), usage=usage)
    assert (outcome.candidates, outcome.reranked) == (2, 0)


@pytest.mark.parametrize(("sent", "kept"), [("better", "better"), (7, None), (None, None)])
def test_other_fields_are_kept_if_they_are_strings(sent: Any, kept: str | None) -> None:
    """`rewrittenQuery` and `indexVersion` count only as strings."""
    outcome = heard(rewrittenQuery=sent, indexVersion=sent)
    assert (outcome.rewritten_query, outcome.index_version) == (kept, kept)


Scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(["a", ""]) | st.just([])
)
Members = st.dictionaries(st.sampled_from(["id", "score", "confidence", "text"]), Scalars)


@given(st.lists(Members | Scalars, max_size=8))
def test_whatever_is_sent_only_sound_hits_are_kept(sent: list[Any]) -> None:
    """Kept hits have an id and a number for a score, in the order sent; kept and dropped together are all."""
    before = json.dumps(sent)
    outcome = heard(*sent)
    assert all(type(kept["id"]) in (str, int, float) and type(kept["score"]) in (int, float) for kept in outcome.hits)
    assert len(outcome.hits) + outcome.malformed == len(sent)
    places = [next(place for place, other in enumerate(sent) if other is kept) for kept in outcome.hits]
    assert places == sorted(places)
    assert len(outcome.notes) == bool(outcome.malformed)
    assert json.dumps(sent) == before


# Reports


def lost(engine: str, fault: LegError, took: float = 0.5) -> Outcome:
    """The outcome of a leg that ended so."""
    return failed(engine, fault, took)


def test_report_has_every_engine_by_id() -> None:
    """The report lists engines by id, with what was asked of them and why not."""
    fault = LegRateLimited("-32011 later", code=-32011, retry_after_ms=250)
    fault.attempts = 2
    entries = report([skipped("z", "option", "mmr is not advertised"), lost("m", fault), heard(hit("a"))])
    assert entries == [
        {"id": "docs", "status": "ok", "hits": 1, "tookMs": 12.5, "attempts": 1},
        {
            "id": "m",
            "status": "failed",
            "hits": 0,
            "tookMs": 500.0,
            "attempts": 2,
            "reason": "rate_limited",
            "detail": "-32011 later",
            "code": -32011,
            "retryAfterMs": 250,
        },
        {
            "id": "z",
            "status": "skipped",
            "hits": 0,
            "tookMs": 0.0,
            "attempts": 0,
            "reason": "option",
            "detail": "mmr is not advertised",
        },
    ]


def test_notes_name_engine_and_class() -> None:
    """Each failed engine has one line that names it, its class, time and attempts; engines come by id (B33)."""
    fault = LegTimeout("no answer")
    fault.attempts = 3
    lines = notes([lost("z", fault, 2.0), lost("a", ConnectFailed("refused")), heard(7)])
    assert lines == [
        "a: connect after 500 ms (1 attempt): refused",
        "docs: 1 malformed hit(s) dropped (a hit needs a usable id and a numeric score)",
        "z: timeout after 2000 ms (3 attempts): no answer",
    ]


def test_skipped_and_cancelled_are_not_degraded() -> None:
    """Only engines that were asked and dropped make an answer partial."""
    outcomes = [
        heard(),
        skipped("s", "option", "x"),
        cancelled("c", 0.1),
        lost("z", BadStatus("503")),
        lost("b", BadStatus("1")),
    ]
    assert degraded(outcomes) == ["b", "z"]
    assert notes([skipped("s", "option", "x"), cancelled("c", 0.1)]) == []


# Errors of the whole


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (LegTimeout("slow"), -32014),
        (ConnectFailed("refused"), -32010),
        (BadStatus("503"), -32010),
        (ResponseTooLarge("17 MiB"), -32010),
        (ProtocolViolation("-32603 oops", code=-32603), -32603),
        (ProtocolViolation("no JSON"), -32010),
        (LegRateLimited("429", retry_after_ms=9), -32011),
        (Overloaded("full"), -32011),
        (Refused("-32602 k", code=-32602), -32602),
        (Refused("-32015 gone", code=-32015), -32015),
    ],
    ids=lambda value: value.kind if isinstance(value, LegError) else str(value),
)
def test_required_failure_keeps_its_code(fault: LegError, code: int) -> None:
    """A required engine's failure fails the whole with that failure's own code, and names the engine (RCP §16.2)."""
    outcome = lost("docs", fault)
    error = required_failed(outcome)
    assert error.code == code
    assert error.message == f"the required engine 'docs' failed: {fault.kind}: {fault.message}"
    assert error.data["retryable"] is (code in (-32010, -32011, -32014))
    assert error.data["notes"] == [failure_line(outcome)]
    assert error.data.get("retryAfterMs") == fault.retry_after_ms


def test_nobody_answered_is_unavailable() -> None:
    """When every engine failed the whole is -32010 with a note for each (B32), never an empty success."""
    outcomes = [lost("a", ConnectFailed("refused")), lost("b", LegTimeout("slow"))]
    error = no_engine_answered(outcomes, out_of_time=False)
    assert isinstance(error, BackendUnavailable)
    assert error.data["retryable"] is True
    assert error.data["notes"] == [failure_line(outcome) for outcome in outcomes]
    assert json.loads(json.dumps(error.body()))["code"] == -32010


def test_retrying_what_all_refused_is_no_use() -> None:
    """If trying again cannot help with one of the engines, it is not said that it would."""
    outcomes = [lost("a", Refused("-32602 k", code=-32602)), lost("b", ConnectFailed("refused"))]
    assert no_engine_answered(outcomes, out_of_time=False).data["retryable"] is False


def test_out_of_time_is_said_only_of_time() -> None:
    """The caller's deadline is to blame only if it cut everybody off."""
    slow = [lost("a", LegTimeout("slow")), lost("b", LegTimeout("slow"))]
    assert isinstance(no_engine_answered(slow, out_of_time=True), DeadlineExceeded)
    assert isinstance(no_engine_answered(slow, out_of_time=False), BackendUnavailable)
    mixed = [*slow, lost("c", ConnectFailed("refused"))]
    assert isinstance(no_engine_answered(mixed, out_of_time=True), BackendUnavailable)


def test_everybody_at_the_limit() -> None:
    """If all engines are at a limit the caller is told to come back, and when."""
    outcomes = [lost("a", LegRateLimited("429", retry_after_ms=200)), lost("b", Overloaded("full"))]
    error = no_engine_answered(outcomes, out_of_time=False)
    assert isinstance(error, BackendUnavailable)
    assert (error.data["retryable"], error.data["retryAfterMs"]) == (True, 200)


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_every_class_of_failure_comes_to_an_error(kind: str) -> None:
    """Whatever class all legs failed with, there is an error for it that says so."""
    outcome = Outcome("docs", "failed", kind=kind, detail="because", attempts=1)
    for out_of_time in (True, False):
        error = no_engine_answered([outcome], out_of_time=out_of_time)
        assert error.code in (-32010, -32011, -32014)
        assert f"docs: {kind}" in error.data["detail"]
