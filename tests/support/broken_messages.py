"""Breaks of messages as such, of the handshake and of what is refused (RCP §4 to §6, §11, §12)."""

from collections.abc import Callable
from typing import Any

import rcp

from tests.support.breakable_server import BreakableServer
from tests.support.breaking import Json, alter, caught_by, in_result, without


@caught_by("framing.ids")
def ids_become_strings(server: BreakableServer) -> None:
    alter(server, "ping", lambda response: response.update(id=str(response["id"])))


@caught_by("framing.ids")
def ids_become_integers(server: BreakableServer) -> None:
    def truncated(response: Json) -> None:
        if isinstance(response["id"], float):
            response["id"] = int(response["id"])

    alter(server, "ping", truncated)


@caught_by("framing.null-id")
def null_is_an_id(server: BreakableServer) -> None:
    server.handle = server.model.handle  # type: ignore[method-assign]


@caught_by("framing.version")
def any_version_of_json_rpc(server: BreakableServer) -> None:
    whole = server.handle
    server.handle = lambda message: whole({**message, "jsonrpc": "2.0"})  # type: ignore[method-assign]


@caught_by("framing.notification")
def notifications_are_answered(server: BreakableServer) -> None:
    whole = server.handle
    server.handle = lambda message: whole({"id": 0, **message})  # type: ignore[method-assign]


@caught_by("framing.unknown-notification")
def unknown_notifications_are_refused(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        refused = {"jsonrpc": "2.0", "id": None, "error": {"code": -32004, "message": "unknown"}}
        return refused if str(message.get("method")).startswith("notifications/no") else whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("framing.cancel-with-id")
def cancel_takes_an_id(server: BreakableServer) -> None:
    alter(server, "notifications/cancel", lambda response: {"jsonrpc": "2.0", "id": response["id"], "result": {}})


@caught_by("framing.status")
def errors_have_a_status(server: BreakableServer) -> None:
    whole = server.post

    def post(body: bytes, path: str, accept: str) -> Any:
        status, kind, content = whole(body, path, accept)
        return (500 if b'"error"' in content else status), kind, content

    server.post = post  # type: ignore[method-assign]


@caught_by("framing.content-type")
def everything_is_html(server: BreakableServer) -> None:
    whole = server.post
    server.post = lambda *asked: (lambda got: (got[0], "text/html", got[2]))(whole(*asked))  # type: ignore[method-assign]


@caught_by("framing.path")
def paths_do_not_matter(server: BreakableServer) -> None:
    whole = server.post
    server.post = lambda body, path, accept: whole(body, "", accept)  # type: ignore[method-assign]


@caught_by("framing.no-json")
def half_a_message_is_a_bad_request(server: BreakableServer) -> None:
    whole = server.written
    server.written = lambda answer: whole(answer).replace(b"-32700", b"-32600")  # type: ignore[method-assign]


@caught_by("framing.unknown-fields")
def unknown_fields_are_refused(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        if "x-unknown" in message:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32600, "message": "x-unknown?"}}
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("handshake.info-first")
def responses_lack_jsonrpc(server: BreakableServer) -> None:
    alter(server, "info", lambda response: {key: response[key] for key in response if key != "jsonrpc"})


@caught_by("handshake.ping-first")
def both_result_and_error(server: BreakableServer) -> None:
    alter(server, "ping", lambda response: {**response, "error": {"code": -32603, "message": "no"}})


@caught_by("batch.answers")
def batches_lose_a_member(server: BreakableServer) -> None:
    whole = server.batch
    server.batch = lambda messages: whole(messages[:1])  # type: ignore[method-assign]


@caught_by("batch.empty")
def empty_batches_get_a_list(server: BreakableServer) -> None:
    whole = server.batch
    server.batch = lambda messages: whole(messages) if messages else [whole([])]  # type: ignore[method-assign]


@caught_by("batch.malformed")
def malformed_members_are_dropped(server: BreakableServer) -> None:
    whole = server.batch

    def batch(messages: list[Any]) -> Any:
        return whole([message for message in messages if isinstance(message, dict) and "method" in message])

    server.batch = batch  # type: ignore[method-assign]


@caught_by("batch.notifications")
def batches_of_notifications_get_a_list(server: BreakableServer) -> None:
    whole = server.batch
    server.batch = lambda messages: whole(messages) or []  # type: ignore[method-assign]


@caught_by("handshake.version")
def version_0_will_do(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        if message.get("params", {}).get("protocolVersion") == 0:
            message = {**message, "params": {}}
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("handshake.initialize")
def a_version_that_nobody_asked_for(server: BreakableServer) -> None:
    alter(server, "initialize", lambda response: response.get("result", {}).update(protocolVersion=2))


@caught_by("handshake.again")
def initialize_again_and_again(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        if message.get("method") == "initialize" and message["params"]["protocolVersion"] == 1:
            server.model._initialized = False
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("handshake.info")
def info_says_something_else(server: BreakableServer) -> None:
    alter(server, "info", lambda response: response["result"].update(capabilities={}))


@caught_by("handshake.ping")
def nonces_get_lost(server: BreakableServer) -> None:
    alter(server, "ping", lambda response: {**response, "result": {}})


@caught_by("handshake.ping")
def nonces_lose_their_accents(server: BreakableServer) -> None:
    whole = server.written
    server.written = lambda answer: whole(answer).replace(b"\\u00e9", b"e")  # type: ignore[method-assign]


@caught_by("capabilities.retrieval")
def nothing_to_retrieve(server: BreakableServer) -> None:
    for name in ("retrieve", "embed", "rerank", "graph"):
        del server.offers[name]


@caught_by("capabilities.shape")
def a_capability_is_true(server: BreakableServer) -> None:
    server.offers["citations"] = True  # type: ignore[assignment]


@caught_by("capabilities.shape")
def a_number_is_a_string(server: BreakableServer) -> None:
    server.offers["retrieve"]["maxK"] = "20"


@caught_by("capabilities.enums")
def a_mode_of_its_own(server: BreakableServer) -> None:
    server.offers["retrieve"]["modes"] = ["dense", "sparse", "hybrid", "quantum"]


@caught_by("capabilities.claim")
def no_level_is_stated(server: BreakableServer) -> None:
    server.model._conformance = None


@caught_by("handshake.ping")
def nonces_become_text(server: BreakableServer) -> None:
    def changed(response: Json) -> Json:
        nonce = response.get("result", {}).get("nonce")
        return response if nonce is None else {**response, "result": {"nonce": str(nonce)}}

    alter(server, "ping", changed)


@caught_by("capabilities.claim")
def a_level_of_its_own(server: BreakableServer) -> None:
    server.model._conformance = "L9"


@caught_by("gating.unknown-method")
def unknown_methods_lack_a_capability(server: BreakableServer) -> None:
    whole = server.written
    server.written = lambda answer: whole(answer).replace(b"-32004", b"-32003")  # type: ignore[method-assign]


@caught_by("gating.missing")
def missing_capabilities_are_unknown_methods(server: BreakableServer) -> None:
    del server.offers["memory"]
    whole = server.written
    server.written = lambda answer: whole(answer).replace(b"-32003", b"-32004")  # type: ignore[method-assign]


@caught_by("gating.missing")
def params_are_checked_before_the_gate(server: BreakableServer) -> None:
    del server.offers["memory"]
    alter(server, "memory/recall", lambda response: response["error"].update(code=-32602))


@caught_by("gating.positive-integers")
def the_field_is_not_named(server: BreakableServer) -> None:
    alter(server, "retrieve", lambda response: response.get("error", {}).pop("data", None) and None)


@caught_by("gating.positive-integers")
def k_is_clamped_from_below(server: BreakableServer) -> None:
    server.model.handle = clamped(server.model)


def clamped(model: rcp.Server) -> Callable[[Any], Any]:
    whole = model.handle

    def handle(message: Any) -> Any:
        k = message.get("params", {}).get("k") if isinstance(message, dict) else None
        return whole({**message, "params": {**message["params"], "k": 1}} if k in (0, -1) else message)

    return handle


@caught_by("gating.funnel")
def the_funnel_may_be_upside_down(server: BreakableServer) -> None:
    whole = server.handle

    def handle(message: Any) -> Any:
        params = message.get("params")
        if isinstance(params, dict) and "candidateK" in params:
            message = {**message, "params": {key: params[key] for key in params if key != "candidateK"}}
        return whole(message)

    server.handle = handle  # type: ignore[method-assign]


@caught_by("gating.query")
def no_query_is_an_internal_error(server: BreakableServer) -> None:
    alter(server, "retrieve", lambda response: response.get("error", {"code": 0}).update(code=-32603))


@caught_by("gating.strict")
def options_are_ignored(server: BreakableServer) -> None:
    without(server, "mmr")


@caught_by("gating.strict")
def the_option_is_not_named(server: BreakableServer) -> None:
    alter(server, "retrieve", lambda response: response.get("error", {}).update(data={"option": "something"}))


@caught_by("gating.not-strict")
def what_is_left_out_is_not_told(server: BreakableServer) -> None:
    in_result(server, "retrieve", lambda result, params: result["usage"].pop("notes", None))
