"""A demo engine as an RCP server."""

import signal
import socket
from typing import Any, NoReturn

import pytest
import rcp

from app.demo import concepts, packages, rcp_server, stdlib
from app.demo.demo_document import DemoDocument, Found, Search
from app.demo.fulltext import FullText
from app.demo.query_params import DemoQuery

CAPABILITIES = {"retrieve": rcp_server.retrieve_offer("sparse", "bm25", max_k=5), "citations": {}}
ANSWER = Found(DemoDocument("a", "a", "text", {"title": "A"}, {}), 2.0, 0.5)


def served(search: Any) -> Any:
    """A server that has been shaken hands with, as a function from a request to its response."""
    server = rcp_server.build_server("engine", CAPABILITIES, search)
    server.handle({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}})
    return lambda method, **params: server.handle({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def test_a_search_is_answered_as_the_protocol_says() -> None:
    """Hits, and usage with candidates, latency and the notes of what was not honoured."""
    asked: list[DemoQuery] = []

    def search(question: DemoQuery) -> Search:
        asked.append(question)
        return Search([ANSWER], 9)

    result = served(search)("retrieve", query="q", k=3, strict=False, mode="dense")["result"]
    assert result["hits"] == [ANSWER.hit(include_text=True)]
    assert result["usage"].pop("latencyMs") >= 0
    assert result["usage"] == {"candidates": 9, "reranked": 0, "notes": ["mode 'dense' is not offered"]}
    assert (asked[0].text, asked[0].k) == ("q", 3)


def test_what_is_advertised_is_what_is_handed_in() -> None:
    """`info` names the engine, the gateway's version, L0 and the capabilities as they are."""
    info = served(lambda question: Search())("info")["result"]
    assert info["capabilities"] == CAPABILITIES
    assert info["server"]["name"] == "engine"
    assert info["_meta"] == {"conformance": "L0"}


def test_a_refusal_keeps_its_code() -> None:
    """What the question's reader refuses reaches the caller with code and data."""
    error = served(lambda question: Search())("retrieve", query="q", mode="dense")["error"]
    assert (error["code"], error["data"]) == (-32005, {"option": "mode"})


def test_the_demo_engines_differ_and_say_so() -> None:
    """One sparse with filters, one dense with filters, one sparse without; none of them claims a mode that it lacks."""
    offers = [engine.CAPABILITIES for engine in (stdlib, concepts, packages)]
    assert [offer["retrieve"]["modes"] for offer in offers] == [["sparse"], ["dense"], ["sparse"]]
    assert [offer["retrieve"]["scoreScale"] for offer in offers] == ["bm25", "cosine", "bm25"]
    assert ["filter" in offer for offer in offers] == [True, True, False]
    assert all("citations" in offer and offer["retrieve"]["confidence"] for offer in offers)


def test_a_taken_port_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    """The engine leaves with 1 and a remedy, and has not indexed anything for it."""

    def build() -> NoReturn:
        raise AssertionError("indexed for a port that is taken")

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as left:
            rcp_server.serve_http("engine", build, ["--port", str(taken.getsockname()[1])])
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert left.value.code == 1
    assert "choose another with --port" in capsys.readouterr().err


def test_progress_never_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """stdout may belong to the protocol."""
    rcp_server.say("engine", "indexing")
    assert capsys.readouterr() == ("", "engine: indexing\n")


def test_a_small_engine_answers_an_sdk_server_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own build, over few documents, answers `retrieve` through the SDK's dispatch."""
    documents = [DemoDocument(n, n, f"about {n}", {}, {"module": n, "kind": "module"}) for n in ("json", "csv", "os")]
    index = FullText(documents)
    monkeypatch.setattr(stdlib, "read_library", lambda name: documents)
    monkeypatch.setattr(stdlib, "FullText", lambda read: index)
    server = stdlib.build()
    assert isinstance(server, rcp.Server)
    server.handle({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
    tree = {"field": "module", "op": "ne", "value": "csv"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "about csv json", "filter": tree}}
    assert [hit["id"] for hit in server.handle(message)["result"]["hits"]] == ["json", "os"]
    index.close()
