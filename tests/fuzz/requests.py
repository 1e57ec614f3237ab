"""Requests to the endpoint, as bytes: every method with params of odd shapes, framed by heads that may lie."""

from random import Random
from typing import Any

from tests.fuzz.chance import bent, bitten, one_of, picked, text_of, value

KEY = "red-key-0123456789"
STRANGER = b"X-API-Key: not-a-key-0123456789"
KNOWN = b"X-API-Key: " + KEY.encode()

RETRIEVE: dict[str, Any] = {
    "query": "q",
    "k": 5,
    "mode": "hybrid",
    "candidateK": 20,
    "fusion": {"method": "rrf", "rrfK": 60, "weights": {"red": 2, "blue": 9, "shared": 1}},
    "rerank": {"method": "llm", "topN": 10},
    "mmr": {"lambda": 0.5},
    "filter": {"and": [{"field": "lang", "op": "eq", "value": "de"}, {"not": {"field": "n", "op": "gt", "value": 1}}]},
    "minScore": 0.1,
    "unit": "chunk",
    "tokenBudget": 100,
    "sessionId": "s",
    "includeText": True,
    "seed": 1,
    "indexVersion": "v",
    "strict": False,
    "cursor": "c",
    "x-gateway": {"engines": ["red", "blue"], "identity": "id", "explain": True, "mmr": {"lambda": 0.2}},
    "_meta": {"progressToken": "t", "deadlineMs": 500, "federation": {"depth": 2, "path": ["a"]}, "logLevel": "debug"},
}
ESSENTIAL = ("query", "strict")

PARAMS: dict[str, Any] = {
    "retrieve": RETRIEVE,
    "initialize": {"protocolVersion": 1, "client": {"name": "c", "version": "1"}, "capabilities": {}},
    "info": {},
    "ping": {"nonce": "n"},
    "shutdown": {},
    "catalog/list": {"cursor": "c"},
    "embed": {"inputs": ["a", {"type": "text", "text": "b"}], "kind": "query", "encoding": "float"},
    "embed/sparse": {"texts": ["a"], "kind": "query"},
    "embed/multi": {"inputs": ["a"]},
    "rerank": {"query": "q", "passages": ["a", "b"], "topN": 1, "method": "llm"},
    "query/transform": {"query": "q", "method": "rewrite", "n": 2},
    "graph": {"op": "local", "query": "q", "k": 3, "seedIds": [1], "hops": 2},
    "index/add": {"documents": [{"id": "d", "text": "t", "meta": {}}], "chunk": True, "_meta": {"idempotencyKey": "i"}},
    "index/delete": {"ids": ["d"]},
    "feedback": {"sessionId": "s", "signals": [{"hitId": "a", "used": True, "reward": 0.5, "poisonSuspected": True}]},
    "memory/build": {"documents": [{"text": "t"}], "scope": "session"},
    "memory/recall": {"query": "q", "memoryId": "m", "n": 1},
    "x-acme/rank": {"anything": 1},
    "notifications/cancel": {"id": 1, "reason": "r"},
    "nonsense": {},
}
METHODS = tuple(PARAMS)
PATHS = (
    *(b"/rcp", b"/rcp", b"/rcp", b"/rcp/", b"/rcp?key=x", b"/rcp/retrieve", b"/rcp/%72etrieve", b"/engines/red/rcp"),
    *(
        b"/engines/blue/rcp",
        b"/engines/blue/rcp/retrieve",
        b"/engines/shared/rcp/retrieve",
        b"/engines",
        b"/metrics",
        b"/readyz",
        b"/%00",
        b"//rcp",
    ),
    *(b"/engines/%2e%2e/rcp", b"*", b"http://h/rcp", b"/rcp/" + b"x" * 300),
)
LINES = (
    *(b"Accept: text/event-stream", b"Accept: application/json, text/event-stream;q=0.5", b"Accept: \xff;q=x"),
    *(b"Content-Type: text/plain; charset=bogus", b"Content-Encoding: gzip", b"Expect: 100-continue", b"Upgrade: h2c"),
    *(b"Connection: close", b"Connection: upgrade, te", b"RCP-Session: s", b"RCP-Session: " + b"s" * 300, STRANGER),
    *(b"X-Request-ID: \xff\xfe", b"X-Forwarded-For: 1.2.3.4, ::1, x", b"Origin: null", b"Cookie: a=b", b"TE: trailers"),
    *(b"Authorization: Bearer \xc3\xa4", b"Authorization: Basic xxx", b"traceparent: 00-x-y-01", b"Host: evil"),
)


def message(chance: Random) -> Any:
    """One JSON-RPC message."""
    method = one_of(chance, (4, "retrieve"), (6, chance.choice(METHODS)))
    wanted = {name: part for name, part in PARAMS[method].items() if name in ESSENTIAL or chance.random() < 0.4}
    made = {"jsonrpc": "2.0", "id": chance.choice((1, "a", 1, 2.5)), "method": method, "params": bent(chance, wanted)}
    if chance.random() < 0.15:
        made[chance.choice(("jsonrpc", "id", "method", "params"))] = value(chance)
    if chance.random() < 0.1:
        made.pop(chance.choice(("jsonrpc", "id", "params")), None)
    return made


def body(chance: Random) -> bytes:
    """The bytes of a message, of a batch, or of something else."""
    kind = chance.randrange(12)
    if kind == 0:
        return text_of(chance, [message(chance) for _ in range(chance.randrange(4))])
    if kind == 1:
        return text_of(chance, value(chance, 3))
    return bitten(chance, text_of(chance, message(chance)))


def request(chance: Random) -> bytes:
    """One HTTP request; now and then its head says something else than its body."""
    content = body(chance)
    verb = one_of(chance, (30, b"POST"), (1, b"GET"), (1, b"OPTIONS"), (1, b"HEAD"), (1, b"PUT"))
    path = one_of(chance, (3, b"/rcp"), (1, chance.choice(PATHS)))
    lines = [b"Host: g", *picked(chance, LINES, 0.05)]
    if chance.random() < 0.93:
        lines.append(KNOWN)
    framing = chance.randrange(12)
    if framing == 0:
        lines.append(b"Transfer-Encoding: chunked")
        content = b"%x\r\n%b\r\n0\r\n%b\r\n" % (
            len(content),
            content,
            chance.choice((b"", b"X: y\r\n", KNOWN + b"\r\n")),
        )
    elif framing == 1:
        lines.append(b"Content-Length: %d" % chance.choice((0, 1, len(content) + 5, 2**20 + 1, 10**30)))
    elif framing != 2 or verb == b"POST":
        lines.append(b"Content-Length: %d" % len(content))
    head = b"\r\n".join([b"%b %b HTTP/1.1" % (verb, path), *lines]) + b"\r\n\r\n"
    return (bitten(chance, head) if chance.random() < 0.15 else head) + content


def conversation(chance: Random) -> bytes:
    """What comes over one connection: one request, or two."""
    return request(chance) + (request(chance) if chance.random() < 0.1 else b"")
