"""The demo end to end: three real engines on the published SDK, one gateway, and the SDK's client in front of it."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rcp

from tests.support.running_demo import QUESTION, RunningDemo, running_demo


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningDemo]:
    """The demo, ended with the session; it must leave with 0 and leave nothing that listens."""
    running = running_demo()
    yield running
    assert running.end() == 0
    assert Path(f"/proc/{running.process.pid}").exists() is False
    for url in (running.url, *(url.removesuffix("/rcp") for url in running.engine_urls.values())):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))


@pytest.fixture
def client(demo: RunningDemo) -> rcp.Client:
    """The SDK's client, connected to the gateway."""
    return rcp.connect_http(f"{demo.url}/rcp")


def ask_engine(demo: RunningDemo, name: str, method: str, **params: Any) -> dict[str, Any]:
    """One request to an engine itself. (It was initialized by the gateway, so an SDK client cannot connect again.)"""
    transport = rcp.HttpTransport(demo.engine_urls[name])
    response: dict[str, Any] = transport.call({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return response


def test_progress_and_answer_are_shown(demo: RunningDemo) -> None:
    """The user sees what is being indexed and who is up, then the fused hits on stdout, then how to ask more."""
    for words in ("reading the docstrings of", "entries indexed", "fitting vectors to", "packages is up after"):
        assert words in demo.progress
    assert demo.answer.strip().startswith(QUESTION)
    assert "list.sort()" in demo.answer
    assert f'make demo ARGS="--port {demo.port} ' in demo.progress


def test_the_gateway_is_one_server_to_an_sdk_client(client: rcp.Client) -> None:
    """It advertises what its engines can do together: both modes, filters, citations, three engines."""
    assert client.server["name"] == "rcp-gateway"
    assert set(client.capabilities["retrieve"]["modes"]) == {"dense", "sparse"}
    assert client.capabilities["filter"]["fields"] == {"module": "keyword", "kind": "keyword"}
    assert client.capabilities["catalog"] == {"engines": 3}
    assert {engine["id"] for engine in client.catalog()["engines"]} == {"stdlib", "concepts", "packages"}


def test_engines_agree_and_their_copies_become_one_hit(client: rcp.Client) -> None:
    """The two engines over the same text return the same ids, which come once, with both as contributors."""
    hits = client.retrieve(QUESTION, k=10)
    ids = [hit["id"] for hit in hits]
    assert len(set(ids)) == len(ids) == 10
    sort = next(hit for hit in hits if hit["id"] == "list.sort")
    assert {engine["id"] for engine in sort["meta"]["engines"]} == {"stdlib", "concepts"}
    assert sort["citation"]["uri"].endswith("/library/stdtypes.html#list.sort")
    assert any(hit["id"].startswith("pkg:") for hit in client.retrieve("read YAML files", k=30))


def test_scores_and_confidences_are_the_gateways_own(client: rcp.Client) -> None:
    """Fused scores fall along the list, and both lie in [0, 1]."""
    hits = client.retrieve("compress a file", k=20)
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= hit["score"] <= 1 and 0 <= hit["confidence"] <= 1 for hit in hits)


def test_a_filter_is_asked_of_those_who_have_it(client: rcp.Client) -> None:
    """Every hit fulfils it; the engine without filters is left out with a reason."""
    tree = rcp.filter.eq("module", "json") & rcp.filter.in_("kind", ["function", "class"])
    result = client.call("retrieve", {"query": "decode a document", "k": 5, "filter": tree.to_json()})
    assert result["hits"]
    assert {hit["meta"]["module"] for hit in result["hits"]} == {"json"}
    report = {engine["id"]: engine["status"] for engine in result["_meta"]["x-gateway"]["engines"]}
    assert report == {"stdlib": "ok", "concepts": "ok", "packages": "skipped"}


@pytest.mark.parametrize(("name", "mode"), [("stdlib", "sparse"), ("concepts", "dense")])
def test_an_engine_keeps_the_protocol(demo: RunningDemo, name: str, mode: str) -> None:
    """Scores descend from the floor upwards, `minScore`, `k`, `filter` and `includeText` hold, citations are there."""
    offer = ask_engine(demo, name, "info")["result"]["capabilities"]["retrieve"]
    assert (offer["modes"], offer["scoreFloor"], offer["confidence"]) == ([mode], 0, True)
    hits = ask_engine(demo, name, "retrieve", query="open a file", k=20)["result"]["hits"]
    scores = [hit["score"] for hit in hits]
    assert len(hits) == 20
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] >= 0
    assert all(0 <= hit["confidence"] <= 1 and hit["citation"]["uri"] and hit["text"] for hit in hits)
    fewer = ask_engine(demo, name, "retrieve", query="open a file", k=20, minScore=scores[5], includeText=False)
    assert 6 <= len(fewer["result"]["hits"]) < 20
    assert not any("text" in hit for hit in fewer["result"]["hits"])
    again = ask_engine(demo, name, "retrieve", query="open a file", k=20)["result"]["hits"]
    assert again == hits


def test_the_engines_share_ids_and_text(demo: RunningDemo) -> None:
    """Of the same entries: what both return is the same document."""
    lists = [
        {hit["id"]: hit["text"] for hit in ask_engine(demo, name, "retrieve", query="json", k=50)["result"]["hits"]}
        for name in ("stdlib", "concepts")
    ]
    shared = lists[0].keys() & lists[1].keys()
    assert len(shared) > 10
    assert all(lists[0][name] == lists[1][name] for name in shared)


def test_packages_speaks_over_stdio(capfd: pytest.CaptureFixture[str]) -> None:
    """An SDK client can run the third engine as its child; progress goes to stderr, so that the pipe stays clean."""
    client = rcp.connect_stdio([sys.executable, "-m", "app.demo.packages"])
    try:
        assert not client.supports(rcp.Capability.Filter)
        hits = client.retrieve("pytest: simple powerful testing", k=3)
        assert "pytest" in {hit["id"] for hit in hits}
        assert client.capabilities["retrieve"]["maxK"] == 50
    finally:
        client.shutdown()
    assert "distributions indexed" in capfd.readouterr().err
