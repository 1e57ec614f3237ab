"""The params that engines are sent instead of the caller's: `k`, `candidateK`, `rerank`, `fusion` and `_meta`. Pure.

Over-fetching changes `k`, so params that depend on it are adjusted to what each engine accepts (RCP §7.7, §16).
"""

from collections.abc import Mapping
from typing import Any

from app.federation.calls import Call
from app.protocol.advertisement import Advertisement, RetrieveOffer
from app.protocol.envelope import SharedParams

OWN_PARAMS = ("minScore", "tokenBudget", "cursor", "fusion", "sessionId", "k", "candidateK", "rerank")
"""Params that the gateway handles itself or adjusts; all others are forwarded unchanged."""

INNER_LISTS = frozenset({"dense", "sparse"})
"""Keys of `fusion.weights` that concern fusion inside an engine, not the federation."""


ALIKE = frozenset({"query", "k", "filter", "includeText", "minScore"})
"""Params that every engine is sent alike, or not at all."""

Shared = dict[tuple[int, float], SharedParams]
"""(`k`, deadline) -> the params of all engines that have both in common."""


def forwarded_meta(call: Call, identity: str) -> dict[str, Any]:
    """The `_meta` of every engine without its deadline: depth reduced by one, and this gateway's id appended to the
    path (RCP §16)."""
    most = call.default_depth
    # The caller may ask for less depth than configured, never for more.
    depth = most if call.meta.depth is None else min(call.meta.depth, most)
    return {**call.passed_on, "federation": {"depth": max(0, depth - 1), "path": [*call.meta.path, identity]}}


def shared_params(
    known: Shared, common: tuple[int, float], forwarded: Mapping[str, Any], meta: dict[str, Any]
) -> SharedParams:
    """The params of engines with this `k` and deadline, for requests in which nothing depends on their
    advertisements."""
    params = known.get(common)
    if params is None:
        params = known[common] = SharedParams(forwarded, _meta=meta, k=common[0])
    return params


def write_funnel(params: dict[str, Any], raw: Mapping[str, Any], asked: int, advertisement: Advertisement) -> int:
    """Write `rerank` and `candidateK` so that candidateK ≥ topN ≥ k holds at this engine; returns its `k`."""
    rerank = raw.get("rerank")
    floor = asked
    if rerank is not None:
        if type(rerank) is dict and "topN" in rerank:
            reranker = advertisement.capabilities.get("rerank")
            most = reranker.get("maxCandidates") if type(reranker) is dict else None
            # Over-fetching raised `k`, so the reranker must see at least as many.
            top_n = max(rerank["topN"], asked)
            # The engine's reranker has a limit: `k` has to fit into it as well.
            if type(most) is int and most >= 1:
                top_n = min(top_n, most)
                asked = min(asked, top_n)
            floor = top_n
            rerank = {**rerank, "topN": top_n}
        params["rerank"] = rerank
    if "candidateK" in raw:
        params["candidateK"] = max(raw["candidateK"], floor)
    return asked


def write_inner_fusion(params: dict[str, Any], fusion: Mapping[str, Any], offer: RetrieveOffer) -> None:
    """Forward what `fusion` says about dense and sparse lists inside an engine, if it advertises the method."""
    method = fusion.get("method")
    inner = {key: fusion[key] for key in ("method", "rrfK", "alpha") if key in fusion}
    # Weights by engine id are for the federation; engines know nothing of each other.
    weights = {name: value for name, value in (fusion.get("weights") or {}).items() if name in INNER_LISTS}
    if weights:
        inner["weights"] = weights
    if (method in offer.fusion) if method is not None else bool(offer.fusion and (weights or "alpha" in fusion)):
        params["fusion"] = inner


def dedups(advertisement: Advertisement) -> bool:
    """Whether the engine omits hits that it returned before in a session. Such an engine must not know the caller's
    session: it would also omit hits that the gateway fetched but never returned."""
    session = advertisement.capabilities.get("session")
    return type(session) is dict and session.get("dedup") not in (None, False)
