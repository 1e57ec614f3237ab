"""Asking a gateway and its engines many questions."""

import socket
from collections.abc import Iterator

import pytest
import typer

from app.cli import run_collection
from app.cli.failures import Failure
from app.cli.run_collection import RunQuery, engines_of, fetch_runs, params_for
from app.evaluation.judged_queries import Query
from tests.support.judged_gateway import JudgedGateway, hits, listening
from tests.support.ports import free_port

QUERIES = [Query(f"q{number}", f"text {number}", {}) for number in range(12)]


@pytest.fixture
def gateway() -> Iterator[JudgedGateway]:
    """A gateway over two engines that know every query."""
    lists = {name: {query.text: hits(f"{name}1", f"{name}2") for query in QUERIES} for name in ("a", "b")}
    with listening(JudgedGateway(lists)) as fake:
        yield fake


def asking(url: str, concurrency: int = 4, timeout: float = 5.0) -> RunQuery:
    """For 50 hits."""
    return RunQuery(url, 50, concurrency, timeout)


def test_every_system_is_asked_every_query(gateway: JudgedGateway) -> None:
    """The gateway whole, and each engine alone; no more requests at once than allowed."""
    whole, a, b = fetch_runs(QUERIES, [None, "a", "b"], asking(gateway.url, concurrency=3))
    assert len(gateway.asked) == 36
    assert 1 <= gateway.busiest <= 3
    assert set(whole.answers) == set(a.answers) == {query.qid for query in QUERIES}
    assert a.rankings()["q0"] == ["a1", "a2"]
    assert b.answers["q1"] == [{"id": "b1", "score": 9.0}, {"id": "b2", "score": 8.0}]
    assert set(whole.rankings()["q0"]) == {"a1", "a2", "b1", "b2"}


def test_every_question_bears_the_key(gateway: JudgedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that tells callers apart is asked with the key of the environment."""
    monkeypatch.setenv("RCP_GATEWAY_KEY", "rcpgw_abc")
    fetch_runs(QUERIES, [None, "a"], asking(gateway.url))
    assert gateway.credentials == {"Bearer rcpgw_abc"}


def test_what_fails_is_kept_with_its_reason(gateway: JudgedGateway) -> None:
    """A refusal is no failure; an engine that failed tells why; the other queries go on."""
    refusal = {"code": -32005, "message": "no mode", "data": {"option": "mode", "detail": "long story"}}
    gateway.errors["a", "text 0"] = refusal
    gateway.errors["a", "text 1"] = {"code": -32010, "message": "no engine answered", "data": {"notes": ["a: timeout"]}}
    (run,) = fetch_runs(QUERIES, ["a"], asking(gateway.url))
    assert run.refusals == {"q0": "no mode (code -32005, option mode)"}
    assert run.failures == {"q1": "no engine answered (code -32010) a: timeout"}
    assert len(run.answers) == 10


def test_answers_that_lack_an_engine_are_counted(gateway: JudgedGateway) -> None:
    """A partial answer is an answer, and is told."""
    gateway.degraded = ["b"]
    (run,) = fetch_runs(QUERIES, [None], asking(gateway.url))
    assert (len(run.answers), run.missed) == (12, {"b": 12})


def test_a_gateway_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some requests without any answer the rest is not tried."""
    monkeypatch.setattr(run_collection, "GIVE_UP", 3)
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        Failure, match=r"not one query was answered\n  a: 3 queries failed, first: no gateway is running at"
    ):
        fetch_runs(QUERIES, ["a"], asking(url, concurrency=1))


def test_a_silent_gateway_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is given up after its time."""
    monkeypatch.setattr("app.cli.gateway_client.GRACE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Failure, match=r"no answer from http://\S+ within 0.05 seconds"):
            fetch_runs(QUERIES[:1], ["a"], asking(url, timeout=0.05))


def test_an_answer_that_is_none_is_told(gateway: JudgedGateway) -> None:
    """What has neither a result nor an error of JSON-RPC is a failure like any other."""
    gateway.errors = {("a", query.text): "nonsense" for query in QUERIES}
    with pytest.raises(Failure, match=r"not as a gateway does"):
        fetch_runs(QUERIES, ["a"], asking(gateway.url))


def test_an_engine_alone_is_asked_for_its_own_order() -> None:
    """Its weight counts, its confidences do not, and the gateway does nothing of its own to the list."""
    params = {
        "mode": "hybrid",
        "minScore": 0.5,
        "tokenBudget": 100,
        "fusion": {"method": "rrf", "weights": {"dense": 0.7, "b": 3}},
        "x-gateway": {"identity": "uri", "mmr": {"lambda": 0.5}},
        "_meta": {"x-trace": "t"},
    }
    query = Query("q", "text", params)
    whole, alone = (params_for(query, engine, RunQuery("u", 50, 1, 2.5)) for engine in (None, "a"))
    assert whole == {**params, "query": "text", "k": 50, "_meta": {"x-trace": "t", "deadlineMs": 2500}}
    assert alone == {
        "mode": "hybrid",
        "query": "text",
        "k": 50,
        "fusion": {"method": "rrf", "weights": {"dense": 0.7, "a": 1.0}},
        "x-gateway": {"identity": "uri", "engines": ["a"], "confidenceWeight": 0},
        "_meta": {"x-trace": "t", "deadlineMs": 2500},
    }


def test_confidences_of_a_judge_do_not_change_an_engines_order(gateway: JudgedGateway) -> None:
    """An engine is measured by its own ranking even where its confidences contradict it."""
    gateway.lists["a"]["text 0"] = hits("x", "y", "z", confidence=(0.1, 0.2, 0.9))
    gateway.readings["a"] = "independent"
    (run,) = fetch_runs(QUERIES[:1], ["a"], asking(gateway.url))
    assert run.rankings() == {"q0": ["x", "y", "z"]}
    assert [hit["confidence"] for hit in run.answers["q0"]] == [0.1, 0.2, 0.9]


def test_the_engines_that_are_up_are_asked(gateway: JudgedGateway) -> None:
    """The others are left out with a reason; named ones are taken as they are named."""
    gateway.down = {"c": "connect: refused", "d": None}
    assert engines_of(asking(gateway.url), None) == (
        ["a", "b"],
        ["c: left out, it is down (connect: refused)", "d: left out, it is down (no reason given)"],
    )
    assert engines_of(asking("http://nowhere"), " b, a,b") == (["b", "a"], [])
    with pytest.raises(typer.BadParameter):
        engines_of(asking(gateway.url), " , ")


def test_no_engine_at_all_is_told(gateway: JudgedGateway) -> None:
    """With the reason of each."""
    gateway.lists, gateway.down = {}, {"c": "timeout"}
    with pytest.raises(Failure, match=r"no engine behind .* is up and retrieves\n  c: left out, it is down \(timeout"):
        engines_of(asking(gateway.url), None)
