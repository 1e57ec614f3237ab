"""Every method that an engine built on the published SDK can answer, called by the SDK's client over stdio."""

import sys
from pathlib import Path

import rcp

from tests.support.running_gateway import Json
from tests.support.stdio_caller import command

ENGINE = """
import rcp

server = rcp.Server()
server.set_info("all", "1")
server.advertise("embed", {"identity": "space", "dimension": 1})
server.advertise("sparseEmbed", {"identity": "space"})
server.advertise("multiVector", {"identity": "space", "dimension": 1})
server.advertise("rerank", {"methods": ["llm"]})
server.advertise("transform", {"methods": ["hyde"]})
server.advertise("graph", {"ops": ["local", "global", "drift", "communities", "neighbors"]})
server.advertise("index", {"writable": True})
server.advertise("feedback", {})
server.advertise("memory", {"scopes": ["global"]})
HITS = [{"id": "a", "score": 1.0, "text": "t"}]
GRAPH = {
    "local": {"hits": HITS},
    "drift": {"hits": HITS, "followups": ["more?"]},
    "global": {"summary": "s", "communities": []},
    "communities": {"communities": [{"id": "c", "score": 1.0}]},
    "neighbors": {"nodes": [{"id": "a"}], "edges": []},
}
ANSWERS = {
    "embed": lambda params: {"vectors": [[float(len(text))] for text in params["inputs"]]},
    "embed/sparse": lambda params: {"sparse": [{"indices": [1], "values": [1.0]} for text in params["texts"]]},
    "embed/multi": lambda params: {"matrices": [[[1.0]] for text in params["inputs"]], "dimension": 1},
    "rerank": lambda params: {"scores": [float(len(text)) for text in params["passages"]]},
    "query/transform": lambda params: {"queries": [params["query"]]},
    "graph": lambda params: GRAPH[params["op"]],
    "index/add": lambda params: {"ids": [document["id"] for document in params["documents"]]},
    "index/delete": lambda params: {"deleted": len(params["ids"])},
    "feedback": lambda params: {"accepted": len(params["signals"])},
    "memory/build": lambda params: {"memoryId": "m"},
    "memory/recall": lambda params: {"clues": [{"query": "clue", "weight": 1.0}], "hits": HITS},
}
for method, answer in ANSWERS.items():
    server.on(method)(answer)
server.serve_stdio()
"""


def test_every_method_over_stdio(tmp_path: Path) -> None:
    """Embeddings, rerank, transform, graph, index, feedback and memory come through both pipes."""
    entries: list[Json] = [{"id": "all", "command": [sys.executable, "-c", ENGINE], "timeoutMs": 20_000}]
    client = rcp.connect_stdio(command(tmp_path, entries, '{"index": {"enabled": true}}'))
    try:
        assert client.embed(["a", "bb"]) == [[1.0], [2.0]]
        assert client.embed_sparse(["a"])["sparse"] == [{"indices": [1], "values": [1.0]}]
        assert client.call("embed/multi", {"inputs": ["a"]})["matrices"] == [[[1.0]]]
        assert client.rerank("q", ["ccc", "a"]) == [3.0, 1.0]
        assert client.transform("q", "hyde")["queries"] == ["q"]
        assert [hit["id"] for hit in client.graph("local", {"query": "q"})["hits"]] == ["a"]
        assert client.graph("drift", {"query": "q"})["followups"] == ["more?"]
        assert client.graph("global", {"query": "q"})["summary"] == "s"
        assert [community["id"] for community in client.graph("communities")["communities"]] == ["c"]
        assert [node["id"] for node in client.graph("neighbors", {"seedIds": ["a"]})["nodes"]] == ["a"]
        assert client.index_add({"documents": [{"id": "d", "text": "t"}]})["ids"] == ["d"]
        assert client.index_delete({"ids": ["d"]})["deleted"] == 1
        assert client.feedback([{"hitId": "a", "used": True}], query="q")["accepted"] == 1
        memory = client.memory_build(documents=[{"id": "d", "text": "t"}])["memoryId"]
        assert [clue["query"] for clue in client.memory_recall("q", memory_id=memory)["clues"]] == ["clue"]
    finally:
        client.shutdown()
