"""`rerank`: forwarded to the first engine whose methods, models and limits fit. Separate because each method has a
module."""

from collections.abc import Mapping
from typing import Any

from app.federation.calls import MethodCall
from app.federation.candidates import UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forward import Result, forward, plain
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.option_demands import reranked_modalities
from app.protocol.advertisement import Advertisement
from app.protocol.rerank_params import Reranking, completed, read_reranking
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings


async def rerank(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Score passages (RCP §7.6); the result has `scores`, `order` and `results`. Raises RcpError."""
    request = read_reranking(call.params)

    def fit(engine: Engine, advertisement: Advertisement) -> UnfitEngine | None:
        return lacks(request, advertisement.capabilities["rerank"]) or _unread(request, advertisement)

    candidates = candidates_for(call, members, "rerank", read_gateway(call.params.get("x-gateway")), fit)

    def read(result: Result) -> Result:
        return completed(result, len(request.passages), request.top_n)

    return await forward(call, candidates, members, settings, instrumentation, plain("rerank", request.sent, read))


def lacks(request: Reranking, offer: Any) -> UnfitEngine | None:
    """What of the request an engine with this `rerank` capability does not support."""
    offer = offer if type(offer) is dict else {}
    for name, wanted, listed in (("method", request.method, "methods"), ("model", request.model, "models")):
        if wanted is not None and wanted not in _listed(offer, listed):
            return UnfitEngine(f"rerank {name} {wanted[:40]} is not advertised", option=name)
    # bool is a subclass of int, hence `type(...) is`.
    most = offer.get("maxCandidates")
    if type(most) is int and 1 <= most < len(request.passages):
        return UnfitEngine(f"takes at most {most} passages, not {len(request.passages)}", field=request.name, most=most)
    return None


def _unread(request: Reranking, advertisement: Advertisement) -> UnfitEngine | None:
    """A modality of the query or the passages that this engine does not advertise."""
    taken = reranked_modalities(advertisement)
    for name, modalities in request.modalities.items():
        if missing := modalities - taken:
            return UnfitEngine(f"{name} of modality {', '.join(sorted(missing))} are not advertised", option=name)
    return None


def _listed(offer: Mapping[str, Any], key: str) -> list[Any]:
    listed = offer.get(key)
    return listed if type(listed) is list else []
