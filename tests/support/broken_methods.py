"""Breaks of pages, streams and the other methods, and claims of too much (RCP §7, §9, §10, §14)."""

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

from tests.support.breakable_server import BreakableServer
from tests.support.breaking import Json, caught_by, in_result


@caught_by("pages.no-repeats")
def pages_overlap(server: BreakableServer) -> None:
    def overlapping(before: Callable[[Json], Json], params: Json) -> Json:
        cursor = params.get("cursor")
        return before({**params, "cursor": f"at-{int(cursor[3:]) - 1}"} if cursor else params)

    server.replace("retrieve", overlapping)


@caught_by("pages.no-repeats")
def pages_go_round(server: BreakableServer) -> None:
    in_result(server, "retrieve", lambda result, params: "cursor" in params and result.update(nextCursor="at-3"))


@caught_by("pages.no-gaps")
def pages_leave_hits_out(server: BreakableServer) -> None:
    def leaping(before: Callable[[Json], Json], params: Json) -> Json:
        cursor = params.get("cursor")
        return before({**params, "cursor": f"at-{int(cursor[3:]) + 1}"} if cursor else params)

    server.replace("retrieve", leaping)


@caught_by("pages.altered-cursor")
def any_cursor_is_the_first_page(server: BreakableServer) -> None:
    def forgiving(before: Callable[[Json], Json], params: Json) -> Json:
        known = str(params.get("cursor", "at-0"))
        return before(params if known[3:].isdigit() else {key: params[key] for key in params if key != "cursor"})

    server.replace("retrieve", forgiving)


def reporter(server: BreakableServer, **params: Any) -> None:
    """Let progress be told with these params."""
    whole = server.events

    def events(message: Json) -> list[Json]:
        return [{**event, "params": {**event["params"], **params}} for event in whole(message)]

    server.events = events  # type: ignore[method-assign]


@caught_by("stream.progress")
def tokens_become_strings(server: BreakableServer) -> None:
    reporter(server, progressToken="7")


@caught_by("stream.progress")
def progress_is_a_percentage(server: BreakableServer) -> None:
    reporter(server, progress=50)


@caught_by("stream.progress")
def the_response_is_sent_twice(server: BreakableServer) -> None:
    whole = server.events

    def events(message: Json) -> list[Json]:
        return [*whole(message), server.model.handle(message)] if whole(message) else []

    server.events = events  # type: ignore[method-assign]


@caught_by("stream.progress")
def the_response_is_not_last(server: BreakableServer) -> None:
    whole = server.post

    def post(body: bytes, path: str, accept: str) -> Any:
        status, kind, content = whole(body, path, accept)
        again = b"data: %b\n\n" % json.dumps(server.events(json.loads(body))[0]).encode()
        return status, kind, content + (again if kind == "text/event-stream" else b"")

    server.post = post  # type: ignore[method-assign]


@caught_by("stream.same-answer")
def a_stream_ends_in_something_else(server: BreakableServer) -> None:
    whole = server.post

    def post(body: bytes, path: str, accept: str) -> Any:
        status, kind, content = whole(body, path, accept)
        return status, kind, content.replace(b"doc-00", b"doc-99") if kind == "text/event-stream" else content

    server.post = post  # type: ignore[method-assign]


@caught_by("stream.unasked")
def progress_without_a_token(server: BreakableServer) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 0, "progress": 0.5}}
    server.events = lambda message: [told]  # type: ignore[method-assign]


@caught_by("stream.unasked")
def streams_for_everybody(server: BreakableServer) -> None:
    whole = server.post
    server.post = lambda body, path, _: whole(body, path, "text/event-stream")  # type: ignore[method-assign]


@caught_by("log.unasked")
def logs_that_nobody_asked_for(server: BreakableServer) -> None:
    whole = server.events
    told = {"jsonrpc": "2.0", "method": "notifications/log", "params": {"level": "info", "message": "hello"}}
    server.events = lambda message: [told, *whole(message)]  # type: ignore[method-assign]


@caught_by("embed.vectors")
def a_dimension_is_missing(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result["vectors"][0].pop())


@caught_by("embed.vectors")
def a_vector_is_missing(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result["vectors"].pop())


@caught_by("embed.normalized")
def vectors_are_long(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result.update(vectors=[[2.0] * 4 for _ in result["vectors"]]))


@caught_by("embed.batch-limit")
def the_limit_is_lower(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result.update(vectors=result["vectors"][:7]))


@caught_by("embed.encodings")
def binary_vectors_are_cut(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result.update(vectors=["AAAA" for _ in result["vectors"]]))


@caught_by("embed.encodings")
def binary_vectors_are_big_endian(server: BreakableServer) -> None:
    def turned(text: str) -> str:
        numbers = struct.unpack("<4f", base64.b64decode(text))
        return base64.b64encode(struct.pack(">4f", *numbers)).decode()

    def change(result: Json, params: Json) -> None:
        if params.get("encoding"):
            result["vectors"] = [turned(text) for text in result["vectors"]]

    in_result(server, "embed", change)


@caught_by("embed.encodings")
def the_encoding_is_not_named(server: BreakableServer) -> None:
    in_result(server, "embed", lambda result, _: result.pop("encoding", None))


@caught_by("multi.matrices")
def the_dimension_is_another(server: BreakableServer) -> None:
    in_result(server, "embed/multi", lambda result, _: result.update(dimension=7))


@caught_by("multi.matrices")
def the_dimension_is_missing(server: BreakableServer) -> None:
    in_result(server, "embed/multi", lambda result, _: result.pop("dimension"))


@caught_by("transform.queries")
def hyde_imagines_nothing(server: BreakableServer) -> None:
    in_result(server, "query/transform", lambda result, _: result.pop("hypothetical"))


@caught_by("embed.no-inputs")
def nothing_can_be_embedded(server: BreakableServer) -> None:
    server.replace("embed", lambda before, params: before({"inputs": [], **params}))


@caught_by("sparse.vectors")
def an_index_comes_twice(server: BreakableServer) -> None:
    in_result(server, "embed/sparse", lambda result, _: result["sparse"][0].update(indices=[1, 1]))


@caught_by("multi.matrices")
def rows_are_short(server: BreakableServer) -> None:
    in_result(server, "embed/multi", lambda result, _: result["matrices"][0][0].pop())


@caught_by("rerank.scores")
def scores_belong_to_places(server: BreakableServer) -> None:
    in_result(server, "rerank", lambda result, _: result.update(scores=[3.0, 2.0, 1.0]))


@caught_by("rerank.scores")
def a_passage_has_no_score(server: BreakableServer) -> None:
    in_result(server, "rerank", lambda result, _: result["scores"].pop())


@caught_by("rerank.order")
def the_worst_comes_first(server: BreakableServer) -> None:
    in_result(server, "rerank", lambda result, _: result["order"].reverse())


@caught_by("rerank.methods")
def any_reranker_will_do(server: BreakableServer) -> None:
    server.replace("rerank", lambda before, params: before({**params, "method": "cross-encoder"}))


@caught_by("rerank.too-many")
def passages_are_cut(server: BreakableServer) -> None:
    server.replace("rerank", lambda before, params: before({**params, "passages": params["passages"][:10]}))


@caught_by("transform.queries")
def no_query_comes_out(server: BreakableServer) -> None:
    in_result(server, "query/transform", lambda result, _: result.pop("queries"))


@caught_by("transform.methods")
def any_transformation_will_do(server: BreakableServer) -> None:
    server.replace("query/transform", lambda before, params: before({**params, "method": "hyde"}))


@caught_by("graph.results")
def nothing_follows(server: BreakableServer) -> None:
    in_result(server, "graph", lambda result, _: result.pop("followups", None))


@caught_by("graph.ops")
def any_op_will_do(server: BreakableServer) -> None:
    server.replace("graph", lambda before, params: before({**params, "op": "local"}))


@caught_by("catalog.list")
def the_catalog_is_longer(server: BreakableServer) -> None:
    server.offers["catalog"]["engines"] = 3


@caught_by("feedback.accepted")
def more_accepted_than_sent(server: BreakableServer) -> None:
    in_result(server, "feedback", lambda result, _: result.update(accepted=5))


@caught_by("feedback.bad-signals")
def any_signal_will_do(server: BreakableServer) -> None:
    server.replace("feedback", lambda before, params: {"accepted": 1})


@caught_by("memory.recall")
def clues_say_nothing(server: BreakableServer) -> None:
    in_result(server, "memory/recall", lambda result, _: result.update(clues=[{"weight": 1}]))


@caught_by("memory.round-trip")
def memories_have_numbers(server: BreakableServer) -> None:
    in_result(server, "memory/build", lambda result, _: result.update(memoryId=1))


@caught_by("index.round-trip")
def ids_come_in_another_order(server: BreakableServer) -> None:
    in_result(server, "index/add", lambda result, _: result["ids"].reverse())


@caught_by("index.round-trip")
def deleting_is_not_idempotent(server: BreakableServer) -> None:
    server.replace("index/delete", lambda before, params: {"deleted": len(params["ids"])})


@caught_by("claim.level")
def more_is_claimed_than_offered(server: BreakableServer) -> None:
    server.offers["retrieve"]["modes"] = ["dense"]


@caught_by("claim.level")
def more_is_claimed_than_kept(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: hits.reverse())
