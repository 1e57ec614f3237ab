"""JSON Schemas and an example of the params and the result of each RCP method (RCP §7), for documentation.

They describe; what a caller sends is checked by the readers of this package, which know more than a schema can say.
"""

from dataclasses import dataclass
from typing import Any, Final

from app.protocol.retrieve_params import TRANSFORM_METHODS, GatewayOptions, RetrieveOptions

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MethodSchema:
    """One method."""

    name: str
    section: str
    """Of RCP."""
    summary: str
    params: Json
    result: Json
    example_params: Json
    example_result: Json


def _object(required: str = "", **properties: Json) -> Json:
    """An object with these properties; `required` names those that must be there, separated by spaces."""
    schema: Json = {"type": "object", "properties": properties}
    return {**schema, "required": required.split()} if required else schema


def _array(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


_STRING: Json = {"type": "string"}
_NUMBER: Json = {"type": "number"}
_INTEGER: Json = {"type": "integer"}
_BOOLEAN: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 1}
_ANY: Json = {"type": "object"}
_KEYS = _array(_STRING)

_CONTENT = {
    "description": "A string, or a content block (RCP §4.8).",
    "anyOf": [_STRING, _object("type", type=_STRING, text=_STRING)],
}
_CONTENTS = {"anyOf": [*_CONTENT["anyOf"], _array(_CONTENT, minItems=1)]}
_KIND = {"enum": ["query", "passage"]}

_HIT = _object(
    "id score",
    id={"type": ["string", "number"]},
    score={**_NUMBER, "description": "On the scale of this server; not comparable between servers."},
    confidence={"type": "number", "minimum": 0, "maximum": 1},
    text=_STRING,
    unit=_STRING,
    meta=_ANY,
    vector=_array(_NUMBER),
    citation=_object(source=_STRING, uri=_STRING, title=_STRING),
    provenance=_ANY,
    trust=_object(level={"enum": ["trusted", "community", "untrusted"]}, score=_NUMBER),
)
_HITS = _array(_HIT)

_META = _object(
    deadlineMs={**_COUNT, "description": "Milliseconds after which no answer is of use."},
    progressToken={"type": ["string", "integer"], "description": "Asks for progress in an event stream (RCP §9)."},
    traceId=_STRING,
)

_PEER = _object("name version", name=_STRING, version=_STRING)
_ADVERTISEMENT = _object(
    "protocolVersion server capabilities", protocolVersion=_INTEGER, server=_PEER, capabilities=_ANY, _meta=_ANY
)
_ADVERTISED: Json = {
    "protocolVersion": 1,
    "server": {"name": "rcp-gateway", "version": "0.1.0"},
    "capabilities": {"retrieve": {"maxK": 200}, "streaming": {}},
    "_meta": {"conformance": "L1"},
}
_EXAMPLE_HIT: Json = {
    "id": "docs:keys",
    "score": 0.0164,
    "confidence": 0.91,
    "text": "Rotate keys once a quarter.",
    "citation": {"uri": "https://docs.example/keys", "title": "Keys"},
}


def _retrieve_params() -> Json:
    """The schema of the options as they are checked, and what is read besides."""
    schema = RetrieveOptions.model_json_schema(ref_template="#/components/schemas/{model}")
    gateway = GatewayOptions.model_json_schema(ref_template="#/components/schemas/{model}")
    own = {
        "query": {**_CONTENTS, "description": "What is looked for."},
        "filter": {**_ANY, "description": "`{field, op, value}`, or `and`, `or`, `not` of such (RCP §8)."},
        "_meta": _META,
        "x-gateway": {"type": "object", "properties": gateway["properties"]},
    }
    return {
        "type": "object",
        "required": ["query"],
        "properties": {**own, **{name: _plain(option) for name, option in schema["properties"].items()}},
        "$defs": {name: _named(option) for name, option in {**schema["$defs"], **gateway.get("$defs", {})}.items()},
    }


def _named(schema: Json) -> Json:
    return {**schema, "properties": {name: _plain(option) for name, option in schema["properties"].items()}}


def _plain(option: Json) -> Json:
    """An option without the null and the default that only stand for its absence."""
    kinds = [kind for kind in option.get("anyOf", ()) if kind != {"type": "null"}]
    rest = {key: value for key, value in option.items() if key not in ("anyOf", "default", "title")}
    if not kinds:
        return rest
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}


METHODS: Final = (
    MethodSchema(
        *("retrieve", "7.7", "Retrieve the best hits for a query from all engines, fused into one list."),
        _retrieve_params(),
        _object("hits", hits=_HITS, nextCursor=_STRING, indexVersion=_STRING, usage=_ANY, rewrittenQuery=_STRING),
        {"query": "how are keys rotated?", "k": 1},
        {"hits": [_EXAMPLE_HIT], "usage": {"candidates": 2, "latencyMs": 41.7}},
    ),
    MethodSchema(
        *("initialize", "7.1", "Begin a session: versions and capabilities of both sides."),
        _object(protocolVersion=_COUNT, client=_PEER, capabilities=_ANY),
        _ADVERTISEMENT,
        {"protocolVersion": 1, "client": {"name": "example", "version": "1.0"}},
        _ADVERTISED,
    ),
    MethodSchema(
        *("info", "7.2", "The same as `initialize` answers, at any time and without a session."),
        *(_object(), _ADVERTISEMENT, {}, _ADVERTISED),
    ),
    MethodSchema(
        *("ping", "7", "Whether somebody answers; a nonce is echoed."),
        *(_object(nonce={}), _object(nonce={}), {"nonce": "n-1"}, {"nonce": "n-1"}),
    ),
    MethodSchema(*("shutdown", "7", "End the session."), _object(), _object(), {}, {}),
    MethodSchema(
        *("embed", "7.3", "Dense vectors of texts or other contents."),
        _object(inputs=_array(_CONTENT), texts=_KEYS, kind=_KIND, encoding={"enum": ["json", "f32-base64"]}),
        _object("vectors", vectors=_array({"anyOf": [_array(_NUMBER), _STRING]}), encoding=_STRING, dimension=_INTEGER),
        {"inputs": ["rotate keys"], "kind": "query"},
        {"vectors": [[0.25, -0.5]], "dimension": 2},
    ),
    MethodSchema(
        *("embed/sparse", "7.4", "Sparse vectors of texts."),
        _object("texts", texts=_KEYS, kind=_KIND),
        _object("sparse", sparse=_array(_object("indices values", indices=_array(_INTEGER), values=_array(_NUMBER)))),
        {"texts": ["rotate keys"]},
        {"sparse": [{"indices": [17, 203], "values": [0.8, 0.3]}]},
    ),
    MethodSchema(
        *("embed/multi", "7.5", "One matrix of vectors for each input (late interaction)."),
        _object("inputs", inputs=_array(_CONTENT), kind=_KIND),
        _object("matrices", matrices=_array(_array(_array(_NUMBER))), dimension=_INTEGER),
        {"inputs": ["rotate keys"]},
        {"matrices": [[[0.25, -0.5], [0.1, 0.9]]], "dimension": 2},
    ),
    MethodSchema(
        *("rerank", "7.6", "Score passages against a query."),
        _object(
            "query",
            **{"query": _CONTENTS, "passages": _array(_CONTENT), "documents": _array(_CONTENT)},
            **{"method": _STRING, "model": _STRING, "topN": _COUNT},
        ),
        _object("scores", scores=_array(_NUMBER), order=_array(_INTEGER), results=_array(_ANY)),
        {"query": "rotate keys", "passages": ["lost keys", "how to rotate keys"]},
        {"scores": [0.2, 0.9], "order": [1, 0], "results": [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.2}]},
    ),
    MethodSchema(
        *("query/transform", "7.8", "Rewrite, expand or decompose a query."),
        _object("query method", query=_CONTENTS, method={"enum": [*TRANSFORM_METHODS]}, n=_COUNT),
        _object("queries", queries=_KEYS, hypothetical=_STRING),
        {"query": "key rotation", "method": "multi-query", "n": 2},
        {"queries": ["rotate signing keys", "how often to change keys"]},
    ),
    MethodSchema(
        *("graph", "7.9", "Search or walk a knowledge graph."),
        _object(
            "op",
            op={"enum": ["local", "global", "drift", "communities", "neighbors"]},
            query=_CONTENTS,
            k=_COUNT,
            seedIds=_array({"type": ["string", "number"]}),
            hops=_COUNT,
        ),
        _object(hits=_HITS, nodes=_array(_ANY), edges=_array(_ANY), summary=_STRING, communities=_array(_ANY)),
        {"op": "neighbors", "seedIds": ["docs:keys"], "hops": 1},
        {"nodes": [{"id": "docs:keys"}, {"id": "docs:rotation"}], "edges": []},
    ),
    MethodSchema(
        *("index/add", "7.10", "Add or replace documents."),
        _object(
            "documents",
            documents=_array(_object("text", id=_STRING, text=_STRING, meta=_ANY), minItems=1),
            chunk=_BOOLEAN,
            contextual=_BOOLEAN,
        ),
        _object("ids", ids=_KEYS, chunks=_INTEGER),
        {"documents": [{"id": "docs:7", "text": "Rotate keys once a quarter."}]},
        {"ids": ["docs:7"], "chunks": 1},
    ),
    MethodSchema(
        *("index/delete", "7.10", "Delete documents by id."),
        _object("ids", ids=_KEYS),
        _object("deleted", deleted=_INTEGER),
        {"ids": ["docs:7"]},
        {"deleted": 1},
    ),
    MethodSchema(
        *("catalog/list", "7.11", "The engines that the caller sees."),
        _object(),
        _object("engines", engines=_array(_object("id", id=_STRING, server=_PEER, capabilities=_ANY, endpoint=_ANY))),
        {},
        {"engines": [{"id": "docs", "server": {"name": "docs", "version": "2.1"}, "capabilities": {"retrieve": {}}}]},
    ),
    MethodSchema(
        *("feedback", "7.12", "Report which hits were useful, cited or suspicious."),
        _object(
            "signals",
            sessionId=_STRING,
            query=_CONTENTS,
            signals=_array(
                _object(
                    "hitId",
                    hitId={"type": ["string", "number"]},
                    used=_BOOLEAN,
                    cited=_BOOLEAN,
                    helpful=_BOOLEAN,
                    reward={"type": "number", "minimum": -1, "maximum": 1},
                    poisonSuspected=_BOOLEAN,
                    injectionSuspected=_BOOLEAN,
                )
            ),
        ),
        _object("accepted", accepted=_INTEGER),
        {"signals": [{"hitId": "docs:keys", "used": True}]},
        {"accepted": 1},
    ),
    MethodSchema(
        *("memory/build", "7.13", "Build a memory of documents."),
        _object(documents=_array(_ANY), memoryId=_STRING, scope={"enum": ["global", "session"]}),
        _object("memoryId", memoryId=_STRING, tokens=_INTEGER),
        {"documents": [{"text": "Keys change once a quarter."}], "scope": "global"},
        {"memoryId": "m-1", "tokens": 6},
    ),
    MethodSchema(
        *("memory/recall", "7.13", "Recall clues, and perhaps hits, from memories."),
        _object("query", query=_CONTENTS, memoryId=_STRING, sessionId=_STRING, n=_COUNT),
        _object("clues", clues=_array(_object(query=_STRING, seedIds=_array({}), weight=_NUMBER)), hits=_HITS),
        {"query": "when do keys change?", "n": 2},
        {"clues": [{"query": "key rotation schedule", "weight": 0.7}]},
    ),
)
"""Every method of RCP, the most used first."""
