"""A server on the published SDK that offers everything RCP has: what conformance checks are tried on.

    python tests/support/model_server.py --stdio | --http PORT

Its library is small and its arithmetic silly, but it keeps the protocol as far as the SDK does.
"""

import base64
import math
import struct
import sys
from typing import Any

import rcp

Json = dict[str, Any]

KINDS = {"topic": "keyword", "year": "int", "open": "bool"}
OPERATORS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists")
CAPABILITIES: Json = {
    "retrieve": {
        "maxK": 20,
        "modes": ["dense", "sparse", "hybrid"],
        "units": ["document"],
        "fusion": ["rrf"],
        "tokenBudget": True,
        "confidence": True,
        "deterministic": True,
        "snapshots": True,
        "scoreScale": "unbounded",
        "scoreFloor": 0,
    },
    "filter": {"fields": KINDS, "operators": list(OPERATORS)},
    "citations": {},
    "pagination": {},
    "streaming": {},
    "embed": {"dimension": 4, "identity": "silly-4", "batchLimit": 8, "normalized": True, "encodings": ["f32-base64"]},
    "sparseEmbed": {"identity": "silly-sparse"},
    "multiVector": {"dimension": 3, "identity": "silly-multi"},
    "rerank": {"methods": ["cross-encoder"], "maxCandidates": 10},
    "transform": {"methods": ["rewrite", "hyde"]},
    "graph": {"ops": ["local", "global", "drift", "neighbors"]},
    "index": {"writable": True},
    "feedback": {},
    "memory": {"scopes": ["session"]},
    "catalog": {"engines": 1},
}


def bad(field: str) -> rcp.RcpError:
    return rcp.RcpError(-32602, f"'{field}' cannot be used", {"field": field})


def unsupported(option: str) -> rcp.RcpError:
    return rcp.RcpError(-32005, f"'{option}' is not offered", {"option": option})


def library() -> list[Json]:
    """Thirty documents that all match every question, the first one best."""
    return [
        {
            "id": f"doc-{number:02}",
            "score": 3.0 - number / 16,
            "confidence": 1.0 - number / 40,
            "text": f"document {number} about testing " + "word " * 10,
            "unit": "document",
            "meta": {"topic": "abc"[number % 3], "year": 2000 + number % 7, "open": number % 2 == 0},
            "citation": {"source": "library", "uri": f"https://library.example/{number}", "page": number},
            "trust": {"level": "community", "score": 0.5},
        }
        for number in range(30)
    ]


def holds(tree: Any, meta: Json) -> bool:
    """Whether `meta` fulfils a filter (RCP §8)."""
    for word, joined in (("and", all), ("or", any)):
        if word in tree:
            if not tree[word]:
                raise bad(f"filter.{word}")
            return joined([holds(inner, meta) for inner in tree[word]])
    if "not" in tree:
        return not holds(tree["not"], meta)
    field, operator, value = tree.get("field"), tree.get("op"), tree.get("value")
    if field not in KINDS:
        raise bad(str(field))
    if operator not in OPERATORS:
        raise unsupported(f"filter.{operator}")
    shapes = {"in": list, "nin": list, "exists": bool}
    if not isinstance(value, shapes.get(operator, str | int | float)):
        raise bad(field)
    has = meta[field]
    if operator in ("in", "nin"):
        return (has in value) == (operator == "in")
    if operator == "exists":
        return bool(value)
    compare = {"eq": has == value, "ne": has != value}
    if operator in compare:
        return compare[operator]
    if KINDS[field] != "int":
        raise bad(field)
    return {"gt": has > value, "gte": has >= value, "lt": has < value, "lte": has <= value}[operator]


def question(params: Json) -> str:
    """The text of the query."""
    query = params.get("query")
    blocks = query if isinstance(query, list) else [query]
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise bad("query")
    return " ".join(texts)


def retrieve(params: Json) -> Json:
    question(params)
    notes = []
    for option in ("mmr", "rerank", "rewrite", "recency"):
        if params.get(option):
            if params.get("strict", True):
                raise unsupported(option)
            notes.append(f"{option} is not offered")
    if params.get("mode") not in (None, "dense", "sparse", "hybrid"):
        raise unsupported("mode")
    if params.get("indexVersion") not in (None, "v1"):
        raise rcp.RcpError(-32010, "no such snapshot")
    tree, least, start = params.get("filter"), params.get("minScore"), 0
    found = [hit for hit in library() if tree is None or holds(tree, hit["meta"])]
    found = [hit for hit in found if least is None or hit["score"] >= least]
    cursor = params.get("cursor")
    if cursor is not None:
        if not cursor.startswith("at-") or not cursor[3:].isdigit():
            raise rcp.RcpError(-32015, "no such cursor")
        start = int(cursor[3:])
    k = min(params.get("k", 10), 20)
    hits, tokens = [], 0
    for hit in found[start : start + k]:
        size = len(hit["text"].split())
        if "tokenBudget" in params and tokens + size > params["tokenBudget"]:
            break
        tokens += size
        if params.get("includeVectors"):
            hit["vector"] = [1.0, 0.0, 0.0, 0.0]
        hits.append(hit if params.get("includeText", True) else {key: hit[key] for key in hit if key != "text"})
    usage: Json = {"candidates": len(found), "reranked": 0, "latencyMs": 0.1, "tokens": tokens}
    if notes:
        usage["notes"] = notes
    more = {"nextCursor": f"at-{start + k}"} if start + k < len(found) else {}
    return {"hits": hits, "usage": usage, "indexVersion": "v1", **more}


def streamed(params: Json) -> Any:
    yield rcp.Progress(0.5, "half", {"hits": []})
    return retrieve(params)


def texts_of(params: Json) -> list[str]:
    found = params.get("inputs", params.get("texts"))
    if not isinstance(found, list):
        raise bad("inputs")
    return found


def embed(params: Json) -> Json:
    vectors = []
    for text in texts_of(params):
        raw = [1.0 + len(text), float(text.count("a")), 1.0, 2.0]
        length = math.sqrt(sum(value * value for value in raw))
        vectors.append([value / length for value in raw])
    if params.get("encoding") == "f32-base64":
        packed = [base64.b64encode(struct.pack("<4f", *vector)).decode() for vector in vectors]
        return {"vectors": packed, "encoding": "f32-base64", "dimension": 4}
    return {"vectors": vectors, "dimension": 4}


def rerank(params: Json) -> Json:
    passages = params.get("passages")
    if not isinstance(passages, list) or len(passages) > 10:
        raise bad("passages")
    if params.get("method", "cross-encoder") != "cross-encoder":
        raise unsupported("method")
    words = set(question(params).split())
    scores = [float(len(words & set(passage.split()))) + len(passage) / 1000 for passage in passages]
    return {"scores": scores, "order": sorted(range(len(scores)), key=lambda index: -scores[index])}


def transform(params: Json) -> Json:
    if params.get("method") not in ("rewrite", "hyde"):
        raise unsupported("method")
    return {"queries": [question(params)], "hypothetical": "an answer"}


def graph(params: Json) -> Json:
    hits = library()[:2]
    results: Json = {
        "local": {"hits": hits},
        "drift": {"hits": hits, "followups": ["and then?"]},
        "global": {"summary": "all of it", "communities": [{"id": "c1", "score": 1.0}]},
        "neighbors": {"nodes": [{"id": "n1"}], "edges": [{"src": "n1", "dst": "n1"}]},
    }
    if params.get("op") not in results:
        raise unsupported("op")
    result: Json = results[params["op"]]
    return result


def build() -> rcp.Server:
    """The server, not yet initialized."""
    server = rcp.Server()
    server.set_info("model", "1.0")
    server.set_conformance("L2")
    stored: dict[str, Json] = {}
    memories: list[str] = []
    for capability, offer in CAPABILITIES.items():
        server.advertise(capability, dict(offer))

    def add(params: Json) -> Json:
        if not isinstance(params.get("documents"), list):
            raise bad("documents")
        stored.update({document["id"]: document for document in params["documents"]})
        return {"ids": [document["id"] for document in params["documents"]]}

    def feedback(params: Json) -> Json:
        for signal in params.get("signals", []):
            if "hitId" not in signal or not -1 <= signal.get("reward", 0) <= 1:
                raise bad("signals")
        return {"accepted": len(params["signals"])}

    def remember(params: Json) -> Json:
        memories.append(f"memory-{len(memories)}")
        return {"memoryId": memories[-1], "tokens": 1}

    server.on("index/add", add)
    server.on("index/delete", lambda params: {"deleted": sum(stored.pop(id, None) is not None for id in params["ids"])})
    server.on("feedback", feedback)
    server.on("memory/build", remember)
    server.on("memory/recall", lambda params: {"clues": [{"query": question(params), "weight": 0.5}]})
    server.on("embed", embed)
    server.on(
        "embed/sparse", lambda params: {"sparse": [{"indices": [1, 5], "values": [0.5, 1]} for _ in texts_of(params)]}
    )
    server.on("embed/multi", lambda params: {"matrices": [[[1, 2, 3]] for _ in texts_of(params)], "dimension": 3})
    server.on("rerank", rerank)
    server.on("query/transform", transform)
    server.on("graph", graph)
    server.on(
        "catalog/list",
        lambda _: {"engines": [{"id": "self", "server": {"name": "model", "version": "1"}, "capabilities": {}}]},
    )
    server.on("retrieve", retrieve)
    server.stream("retrieve", streamed)
    return server


if __name__ == "__main__":
    if sys.argv[1] == "--stdio":
        build().serve_stdio()
    else:
        build().serve_http(int(sys.argv[2]))
