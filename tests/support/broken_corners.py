"""Breaks of what is easily forgotten: odd messages, hints that must not be refused, options that are promised."""

from collections.abc import Callable
from typing import Any

import rcp

from tests.support.breakable_server import BreakableServer
from tests.support.breaking import Json, alter, caught_by


def refusing(server: BreakableServer, method: str, refused: Callable[[Json], bool], code: int = -32602) -> None:
    """Let `method` refuse the params that `refused` picks."""

    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if refused(params):
            raise rcp.RcpError(code, "no", {"option": "some"})
        return before(params)

    server.replace(method, changed)


def answering(server: BreakableServer, picked: Callable[[Json], bool], answer: Json) -> None:
    """Let messages that `picked` picks get this answer, under their id."""
    whole = server.handle

    def handle(message: Any) -> Any:
        if isinstance(message, dict) and picked(message):
            return {"jsonrpc": "2.0", "id": message.get("id"), **answer}
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


REFUSED: Json = {"error": {"code": -32603, "message": "no"}}


@caught_by("handshake.required")
def the_handshake_is_a_broken_error(server: BreakableServer) -> None:
    answering(server, lambda message: message.get("method") == "retrieve", {"error": {}, "result": {}})


@caught_by("handshake.version-min")
def later_versions_are_agreed_to(server: BreakableServer) -> None:
    server.model._initialized = True
    whole = server.handle

    def handle(message: Any) -> Any:
        if message.get("method") == "initialize":
            version = message["params"]["protocolVersion"]
            return {**whole({**message, "method": "info"}), "result": {**described(server), "protocolVersion": version}}
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


def described(server: BreakableServer) -> Json:
    """Its info."""
    found: Json = server.model.handle({"jsonrpc": "2.0", "id": 0, "method": "info"})["result"]
    return found


@caught_by("handshake.null-params")
def params_must_be_there(server: BreakableServer) -> None:
    answering(server, lambda message: message.get("method") == "ping" and message.get("params") is None, REFUSED)


@caught_by("capabilities.identity")
def an_embedding_space_without_a_name(server: BreakableServer) -> None:
    server.offers["embed"] = {"dimension": 4}


@caught_by("framing.bad-id")
def objects_are_ids(server: BreakableServer) -> None:
    answering(server, lambda message: isinstance(message.get("id"), dict), {"result": {}})


@caught_by("framing.no-method")
def no_method_is_an_unknown_one(server: BreakableServer) -> None:
    whole = server.post

    def post(body: bytes, path: str, accept: str) -> Any:
        status, kind, content = whole(body, path, accept)
        return status, kind, content if b'"method"' in body else content.replace(b"-32600", b"-32004")

    server.post = post  # type: ignore[method-assign]


@caught_by("framing.positional")
def params_may_be_a_list(server: BreakableServer) -> None:
    answering(server, lambda message: isinstance(message.get("params"), list), {"result": {}})


@caught_by("framing.compact")
def the_compact_envelope_gets_an_id(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        return whole({**message, "jsonrpc": "2.0", "id": 0}) if "jsonrpc" not in message else whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("framing.cancel-unknown")
def an_unknown_cancel_is_not_found(server: BreakableServer) -> None:
    answering(server, lambda message: message.get("method") == "notifications/cancel", REFUSED)


@caught_by("gating.vendor")
def vendors_may_do_anything(server: BreakableServer) -> None:
    answering(server, lambda message: str(message.get("method")).startswith("x-"), {"result": {}})


@caught_by("gating.funnel-rerank")
def the_reranking_funnel_may_be_upside_down(server: BreakableServer) -> None:
    server.offers["retrieve"]["rerankBuiltin"] = True
    answering(server, lambda message: "rerank" in (message.get("params") or {}), {"result": {"hits": []}})


@caught_by("retrieve.no-match")
def nothing_found_is_an_error(server: BreakableServer) -> None:
    refusing(server, "retrieve", lambda params: "zqxj" in str(params.get("query")), -32015)


@caught_by("options.candidates")
def candidates_are_refused(server: BreakableServer) -> None:
    refusing(server, "retrieve", lambda params: "candidateK" in params)


@caught_by("options.fusion")
def a_promised_fusion_is_refused(server: BreakableServer) -> None:
    refusing(server, "retrieve", lambda params: "fusion" in params, -32005)


@caught_by("options.mmr")
def promised_variety_is_refused(server: BreakableServer) -> None:
    server.offers["retrieve"]["mmr"] = True


@caught_by("options.session")
def sessions_are_refused(server: BreakableServer) -> None:
    refusing(server, "retrieve", lambda params: "sessionId" in params, -32005)


@caught_by("options.federation")
def aggregators_are_refused(server: BreakableServer) -> None:
    refusing(server, "retrieve", lambda params: "federation" in params.get("_meta", {}))


@caught_by("filter.nested-unknown-field")
def unknown_fields_hide_in_or(server: BreakableServer) -> None:
    def shortened(before: Callable[[Json], Json], params: Json) -> Json:
        tree = params.get("filter", {})
        return before({key: params[key] for key in params if key != "filter"} if "or" in tree else params)

    server.replace("retrieve", shortened)


@caught_by("stream.refusal")
def streams_are_never_refused(server: BreakableServer) -> None:
    whole = server.post

    def post(body: bytes, path: str, accept: str) -> Any:
        return whole(body.replace(b'"k": 0', b'"k": 1') if "event-stream" in accept else body, path, accept)

    server.post = post  # type: ignore[method-assign]


@caught_by("embed.legacy-texts")
def texts_are_unknown(server: BreakableServer) -> None:
    refusing(server, "embed", lambda params: "texts" in params)


@caught_by("rerank.no-passages")
def nothing_is_reranked(server: BreakableServer) -> None:
    server.replace("rerank", lambda before, params: before({"passages": [], **params}))


@caught_by("index.no-documents")
def nothing_is_added(server: BreakableServer) -> None:
    alter(server, "index/add", lambda response: {**response, "result": {"ids": []}} if "error" in response else None)
    server.replace("index/add", lambda before, params: before({"documents": [], **params}))
