"""Options of a request that concern the whole federation rather than one engine. Pure.

They are read once, before any engine is considered: fusion, weights, the engines it names, the snapshot it pins, and
whether it may be forwarded at all."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.federation.calls import Call
from app.federation.forwarded_params import INNER_LISTS
from app.federation.membership import Members
from app.federation.snapshot_tokens import versions_in
from app.fusion.ranked_lists import FusionConfig
from app.protocol.advertisement import Advertisement
from app.protocol.errors import BackendUnavailable, InvalidParams
from app.protocol.retrieve_params import FUSION_METHODS, GatewayOptions, RetrieveParams
from app.settings.schema import FusionSettings, RetrieveSettings


def loop_reason(call: Call, members: Members) -> tuple[str, str] | None:
    """(reason, detail) if the request must not be forwarded at all (RCP §16, decision 3)."""
    if members.identity in call.meta.path:
        return "loop", f"this gateway ({members.identity}) is already in the federation path"
    # An aggregator uses up one level itself, and nothing is forwarded at depth 0.
    if call.meta.depth is not None and call.meta.depth <= 1:
        return "depth", "the federation depth is exhausted"
    return None


def fusion_options(params: RetrieveParams, settings: RetrieveSettings, defaults: FusionSettings) -> FusionConfig:
    """Fusion settings of this request: its own `fusion` and `x-gateway` over the defaults."""
    fusion: Mapping[str, Any] = params.raw.get("fusion") or {}
    gateway = params.gateway
    method = fusion.get("method")
    weight = gateway.confidence_weight
    return FusionConfig(
        method=method if method in FUSION_METHODS else defaults.method,
        rrf_k=fusion.get("rrfK", defaults.rrf_k),
        confidence_weight=defaults.confidence_weight if weight is None else weight,
        identity=gateway.identity or settings.identity,
        silent=defaults.silent,
    )


def requested_engines(gateway: GatewayOptions, members: Members) -> frozenset[str] | None:
    """The engines that the request limits itself to. Raises InvalidParams for a name that is not configured."""
    names = gateway.engines
    if names is None:
        return None
    # A gateway's name selects all its engines that are asked directly.
    known, groups = members.ids(), members.groups
    for name in names:
        if name not in known and name not in groups:
            raise InvalidParams(
                f"'x-gateway.engines' names '{name}', which is not configured", field="x-gateway.engines"
            )
    return frozenset(names).union(*(groups.get(name, ()) for name in names))


def engine_weights(fusion: Mapping[str, Any], members: Members) -> Mapping[str, float]:
    """The request's weights by engine id; the weight of a gateway applies to its engines that are asked directly."""
    weights: Mapping[str, float] = fusion.get("weights") or {}
    if not weights or not members.groups:
        return weights
    # The weight of an engine itself has precedence over that of its gateway.
    spread = {child: weight for name, weight in weights.items() for child in members.groups.get(name, ())}
    return {**spread, **weights}


def check_weights(weights: Mapping[str, float], members: Members) -> None:
    """Raises InvalidParams for a weight whose name is unknown."""
    known = members.ids().union(INNER_LISTS, members.groups) if weights else frozenset()
    for name in weights:
        if name not in known:
            raise InvalidParams(
                f"'fusion.weights' names '{name}', which is neither an engine nor dense or sparse",
                field=f"fusion.weights.{name}",
            )


def closes_cycle(advertisement: Advertisement, call: Call, members: Members) -> bool:
    """Whether this engine is a gateway that the request has passed through, or this gateway (RCP §16)."""
    return advertisement.gateway_id is not None and (
        advertisement.gateway_id in call.meta.path or advertisement.gateway_id == members.identity
    )


def method_note(fusion: Mapping[str, Any]) -> list[str]:
    """A note about an unknown `fusion.method`; only lenient requests get this far with one."""
    method = fusion.get("method")
    if method is None or method in FUSION_METHODS:
        return []
    return [f"fusion.method is not one of {', '.join(FUSION_METHODS)}; the default was used"]


def needs_text(params: RetrieveParams, settings: RetrieveSettings, *, screened: bool = False) -> bool:
    """Whether the gateway needs the texts of hits for itself, even if the caller does not want them."""
    varied = params.gateway.mmr is not None or (not params.strict and "mmr" in params.raw)
    # Identity by content needs the text to recognise copies.
    by_content = (params.gateway.identity or settings.identity) == "content"
    return screened or by_content or varied or params.options.token_budget is not None


def pinned_versions(params: RetrieveParams, members: Members) -> Mapping[str, str] | None:
    """Engine id -> the version it must serve, if the request is pinned to a snapshot of this gateway.

    Raises InvalidParams for a malformed snapshot, BackendUnavailable (-32010) if one of its engines cannot be asked.
    """
    version = params.options.index_version
    pins = None if version is None else versions_in(version)
    if pins is None:
        return None
    able = {
        engine.id
        for engine in members.engines
        if (advertisement := engine.advertisement) is not None
        and advertisement.retrieve is not None
        and advertisement.retrieve.snapshots
    }
    # A snapshot without one of its engines would not be the same snapshot.
    for name in sorted(set(pins) - able):
        raise BackendUnavailable(
            f"the snapshot cannot be served: engine '{name[:128]}' is not available or has no snapshots",
            retryable=name in members.ids(),
            field="indexVersion",
        )
    return pins


def window_of(k: int, settings: RetrieveSettings) -> int:
    """How many hits each engine is asked for when `k` are returned, before its own limit."""
    return max(int(k * settings.overfetch), settings.window_min)


def check_one_version(pinned: Sequence[str]) -> None:
    """Raises InvalidParams if several engines are pinned to one version: versions mean nothing to other engines."""
    if len(pinned) > 1:
        raise InvalidParams(
            f"'indexVersion' is not a snapshot of this gateway, and {len(pinned)} engines have snapshots; send one "
            "that was received from it, or select one engine in 'x-gateway.engines'",
            field="indexVersion",
        )


class Depth(NamedTuple):
    """How many hits beyond those for `k` engines are asked for, because hits returned before are left out."""

    beyond: int = 0
    """Documents that may have to be left out."""
    least: int = 0
    """The smallest window: larger than the previous one."""
    exhausted: frozenset[str] = frozenset()
    """Engines whose saved list is all they have."""


SURFACE: Final = Depth()
"""The depth of a request that continues nothing."""
