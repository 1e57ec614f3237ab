"""Answers of an engine that means ill, or is broken: hits and advertisements of odd shapes, in HTTP that may lie."""

import gzip
import zlib
from random import Random
from typing import Any

from tests.fuzz.chance import bent, bitten, chance_id, one_of, picked, text_of, value

HIT: dict[str, Any] = {
    "id": "r1",
    "score": 0.9,
    "confidence": 0.8,
    "text": "rogue",
    "content": [{"type": "text", "text": "t"}, {"type": "image", "uri": "http://x/y", "mimeType": "image/png"}],
    "modality": "text",
    "unit": "chunk",
    "level": 1,
    "meta": {"engine": "shared", "fusedScore": 9, "a": [1]},
    "vector": [0.1, 0.2],
    "scores": {"dense": 0.5},
    "citation": {"source": "s", "uri": "https://example.org/a", "title": "t", "start": 0, "end": 5, "page": 1},
    "provenance": {"path": ["a"], "nodes": [], "edges": []},
    "trust": {"level": "trusted", "score": 1, "injectionSuspected": False},
    "chunk": {"docId": "d", "index": 0, "context": "c"},
}
RESULT: dict[str, Any] = {
    "hits": [HIT, {"id": 7, "score": 0.5, "text": "b"}, {"id": "good-1", "score": 0.4, "text": "mine"}],
    "nextCursor": "c",
    "indexVersion": "v1",
    "usage": {"candidates": 3, "reranked": 0, "latencyMs": 1.5, "tokens": 9, "notes": ["n"]},
    "rewrittenQuery": "q",
    "_meta": {"degraded": True, "x-gateway": {"engines": []}},
}
DESCRIBED: dict[str, Any] = {
    "protocolVersion": 1,
    "server": {"name": "rogue", "version": "1"},
    "capabilities": {
        "retrieve": {
            **{"maxK": 50, "modes": ["dense", "hybrid"], "fusion": ["rrf"], "mmr": True, "units": ["chunk"]},
            **{"scoreScale": "cosine", "scoreFloor": -1, "confidence": True, "snapshots": True, "deterministic": True},
        },
        "filter": {"fields": {"lang": "keyword"}, "operators": ["eq"]},
        "embed": {"dimension": 3, "identity": "m"},
        "rerank": {"methods": ["llm"], "maxCandidates": 9},
        "transform": {"methods": ["rewrite"]},
        "citations": {},
        "streaming": {},
        "x-acme": {},
    },
    "_meta": {"conformance": "L2", "session": "s", "x-gateway": {"id": "g"}},
}
ERROR = {"code": -32010, "message": "no", "data": {"field": "f", "retryable": True, "retryAfterMs": 10}}
STATUSES = (200, 200, 200, 200, 200, 204, 101, 199, 301, 307, 400, 401, 404, 413, 429, 500, 503, 999)
LINES = (
    *(b"Content-Encoding: gzip", b"Content-Encoding: br", b"Transfer-Encoding: chunked", b"Transfer-Encoding: x"),
    *(b"Content-Length: 0", b"Content-Length: 99999999999999999999", b"Content-Length: -1", b"Location: http://x/"),
    *(
        b"Retry-After: 1",
        b"Retry-After: \xff",
        b"Retry-After: Wed, 99 Foo 2026",
        b"Set-Cookie: a=b",
        b"Connection: close",
    ),
    *(b"Upgrade: h2c", b"Trailer: X", b"Content-Type: text/html", b"X: " + b"y" * 70_000),
)


def content(chance: Random, method: str, call_id: Any) -> bytes:
    """The body of an answer."""
    kind = chance.randrange(14)
    if kind == 0:
        return text_of(chance, {"jsonrpc": "2.0", "id": call_id, "error": bent(chance, ERROR)})
    if kind == 1:
        return text_of(chance, value(chance, 3))
    if kind == 2:
        return b"data: " + text_of(chance, {"jsonrpc": "2.0", "id": call_id, "result": RESULT}) + b"\n\n"
    right = RESULT if method == "retrieve" else DESCRIBED
    made: Any = {"jsonrpc": "2.0", "id": call_id, "result": bent(chance, right, 0.1)}
    if chance.random() < 0.1:
        made = bent(chance, made)
    written = text_of(chance, made)
    return bitten(chance, written) if chance.random() < 0.3 else written


def answer(chance: Random, method: str, call_id: Any) -> bytes:
    """One HTTP answer."""
    body = content(chance, method, chance_id(chance, call_id))
    lines = picked(chance, LINES, 0.03)
    framing = chance.randrange(10)
    if framing == 0:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) + chance.choice((0, 0, 1)), body)
    elif framing == 1:
        lines.append(b"Content-Encoding: " + chance.choice((b"gzip", b"deflate")))
        body = bitten(chance, gzip.compress(body, 1) if chance.random() < 0.5 else zlib.compress(body, 1))
    if framing > 1 or chance.random() < 0.8:
        lines.append(b"Content-Length: %d" % (len(body) + one_of(chance, (12, 0), (1, 5), (1, -1))))
    head = b"\r\n".join([b"HTTP/1.1 %d X" % one_of(chance, (3, 200), (1, chance.choice(STATUSES))), *lines])
    head += b"\r\n\r\n"
    return (bitten(chance, head) if chance.random() < 0.15 else head) + body
