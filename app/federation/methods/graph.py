"""`graph` (RCP §7.9): asks every engine whose graph supports the operation, and merges the answers."""

import asyncio
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

from app.federation.broadcast import (
    BroadcastContext,
    BroadcastRequest,
    BroadcastResult,
    HitFusion,
    broadcast,
    settings_of,
    with_report,
)
from app.federation.calls import time_waited
from app.federation.candidates import UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forwarded_params import dedups
from app.federation.hit_validation import read_result
from app.federation.id_routing import seeds_for
from app.federation.outcome import MAX_HITS, Hit, Outcome, skipped
from app.federation.pagination import Pages
from app.federation.request_options import window_of
from app.federation.response_merge import (
    any_states,
    join_communities,
    join_edges,
    join_followups,
    join_nodes,
    join_summaries,
    other_fields,
)
from app.federation.sessions import scoped
from app.protocol.advertisement import Advertisement
from app.protocol.errors import InvalidParams
from app.protocol.method_params import GraphParams, read_graph
from app.protocol.retrieve_params import DEFAULT_K, read_gateway

FUSED = frozenset({"local", "drift"})
"""Operations that return hits."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "local": ("hits",),
    "drift": ("hits",),
    "global": ("summary", "communities"),
    "communities": ("communities",),
    "neighbors": ("nodes",),
}
"""Operation -> fields of which an engine's result must have at least one."""

_JOINED = ("hits", "followups", "summary", "communities", "nodes", "edges", "nextCursor", "usage", "_meta")


async def graph(context: BroadcastContext, pages: Pages) -> dict[str, Any]:
    """Answer one `graph` for the whole federation, with the report of every engine. Raises RcpError.

    In a session, `pages` remember which engines the hits came from, if any engine takes feedback.
    """
    call, members, settings = context.call, context.members, context.settings
    began = perf_counter() - time_waited(call)
    request = read_graph(call.params)
    gateway = read_gateway(call.params.get("x-gateway"))
    candidates = candidates_for(call, members, "graph", gateway, partial(_fit, request.op))
    screen = await pages.screen(settings.screen)
    hit_fusion = HitFusion(gateway, settings_of(context), min(request.k or DEFAULT_K, members.max_k), screen)
    partial_hits = hit_fusion.partial_hits if request.op in FUSED else None
    read = partial(read_result, NEEDED[request.op])
    collected = await broadcast(context, candidates, partial(_engine_request, request, context), read, partial_hits)
    # No engine was asked because of the seeds, not because of a cycle, which has a note.
    if not collected.engine_calls and not collected.notes:
        raise InvalidParams("no available engine owns any of the 'seedIds'", field="seedIds")
    # Screening long texts takes a while; other requests run in between.
    for _ in hit_fusion.steps(collected.engine_calls, collected.outcomes):
        await asyncio.sleep(0)
    fusion = hit_fusion.fusion(collected.engine_calls, collected.outcomes)
    if request.session_id is not None and "feedback" in members.capabilities and len(fusion):
        await pages.origins.remember(request.session_id, fusion.origins(hit_fusion.keys(fusion)))
    result = _joined(request, collected, hit_fusion.hits(fusion))
    if screen is not None:
        context.instrumentation.screened(screen)
    result["usage"] = {
        "candidates": sum([outcome.candidates for outcome in collected.outcomes]),
        "latencyMs": round((perf_counter() - began) * 1000, 2),
    }
    return with_report(context, collected, result, (*request.notes, *fusion.notes))


def _fit(op: str, _: Engine, advertisement: Advertisement) -> UnfitEngine | None:
    """An engine that does not list its operations may support any."""
    offer = advertisement.capabilities.get("graph")
    ops = offer.get("ops") if type(offer) is dict else None
    return UnfitEngine(f"graph op {op} is not advertised", option="op") if type(ops) is list and op not in ops else None


def _engine_request(request: GraphParams, context: BroadcastContext, engine: Engine) -> BroadcastRequest | Outcome:
    """What this engine is sent: its own seeds under its own ids, and an over-fetched `k`, as in `retrieve`."""
    members = context.members
    params = dict(request.raw)
    asked = 0
    if request.op in FUSED:
        window = window_of(min(request.k or DEFAULT_K, members.max_k), context.settings.retrieve)
        asked = params["k"] = min(window, MAX_HITS)
    elif request.k is not None:
        params["k"] = min(request.k, members.max_k)
    # Parsed and bounded, unlike the raw value.
    if request.hops is not None:
        params["hops"] = request.hops
    if request.session_id is not None and engine.advertisement is not None and not dedups(engine.advertisement):
        params["sessionId"] = scoped(members.identity, request.session_id, context.call.tenant)
    if request.seeds is not None:
        namespaces = {known.id: known.entry.id_namespace for known in members.engines}
        seeds = seeds_for(engine.id, request.seeds, namespaces)
        if seeds:
            params["seedIds"] = seeds
        # Without seeds of its own and without a query there is nothing to ask it.
        elif request.op == "neighbors" or "query" not in params:
            return skipped(engine.id, "seeds", "owns none of the seedIds")
    return BroadcastRequest(params, asked)


def _joined(request: GraphParams, collected: BroadcastResult, hits: list[Hit]) -> dict[str, Any]:
    """The merged fields: those of the operation, others that an engine added, and unknown ones."""
    op, responses = request.op, collected.responses()
    result = other_fields(responses, _JOINED)
    if op in FUSED or hits:
        result["hits"] = hits
    if op == "drift" or any_states(responses, "followups"):
        result["followups"] = join_followups(responses)
    if op == "global" or any_states(responses, "summary"):
        result["summary"] = join_summaries(responses) or ""
    if op in ("global", "communities") or any_states(responses, "communities"):
        result["communities"] = join_communities(responses, request.k if op == "communities" else None)
    if op == "neighbors" or any_states(responses, "nodes"):
        result["nodes"] = join_nodes(responses)
    if op == "neighbors" or any_states(responses, "edges"):
        result["edges"] = join_edges(responses)
    return result
