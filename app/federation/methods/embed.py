"""`embed`, `embed/sparse`, `embed/multi`: forwarded to an engine of one embedding space; spaces are never mixed.

A batch larger than the engine's limit is sent in parts.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.engines.transport import Reply
from app.federation.calls import MethodCall
from app.federation.candidates import UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forward import ForwardedRequest, ForwardReport, Result, Share, forward, gather_bounded
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.protocol.advertisement import Advertisement
from app.protocol.embed_params import Embedding, checked, joined, read_embedding, split
from app.protocol.method_names import GATES
from app.protocol.retrieve_params import GatewayOptions, read_gateway
from app.settings.schema import GatewaySettings

AT_ONCE = 8
"""Parts of one batch that are in flight at the same time."""

MAX_PARTS = 128
"""Parts of one batch at most, so that one request cannot cause any number of calls."""


async def embed(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Embed by the first engine that advertises the method, or by another of the same space (RCP §7.3 to §7.5).
    Raises RcpError."""
    request = read_embedding(call.params)
    gateway = read_gateway(call.params.get("x-gateway"))
    capability = GATES[call.method]
    # Decided before health and options: which space it is must not depend on them.
    first = _first(members, capability, gateway)

    def fit(engine: Engine, advertisement: Advertisement) -> UnfitEngine | None:
        if advertisement is not first and not _same_space(advertisement, first, capability):
            return UnfitEngine("it has a different embedding space")
        return _lacks(request, _offer(advertisement, capability)) or _too_many(
            request, _offer(advertisement, capability)
        )

    candidates = candidates_for(call, members, capability, gateway, fit)
    return await forward(
        call, candidates, members, settings, instrumentation, _forwarded(call.method, capability, request)
    )


def _forwarded(method: str, capability: str, request: Embedding) -> ForwardedRequest:
    async def ask(engine: Engine, share: Share) -> ForwardReport:
        offer = _offer(engine.advertisement, capability)
        dimension = offer.get("dimension")
        parts = split(request.inputs, _limit(offer))

        async def part(inputs: Any) -> Reply:
            sent = {**request.rest, "inputs": inputs, "texts": inputs, "_meta": share.meta}
            return await engine.call(method, sent, share.deadline)

        # The first part to fail ends the others: an incomplete batch is of no use.
        replies = await gather_bounded([partial(part, inputs) for inputs in parts], AT_ONCE)
        results = [
            checked(reply.result, method, len(inputs), dimension if type(dimension) is int else None, request.encoding)
            for reply, inputs in zip(replies, parts, strict=True)
        ]
        return ForwardReport(
            joined(results, method),
            sum(reply.attempts for reply in replies),
            sum(reply.size for reply in replies),
        )

    return ForwardedRequest(ask)


def _first(members: Members, capability: str, gateway: GatewayOptions) -> Advertisement | None:
    """The advertisement that determines the embedding space: of the first available engine by priority."""
    for engine in members.engines:
        advertisement = engine.advertisement
        if (
            advertisement is not None
            and advertisement.offers(capability)
            and (gateway.engines is None or engine.id in gateway.engines)
        ):
            return advertisement
    return None


def _same_space(advertisement: Advertisement, first: Advertisement | None, capability: str) -> bool:
    """Whether both have the same model and dimension. A model without an identity is a space of its own."""
    ours, theirs = _offer(first, capability), _offer(advertisement, capability)
    # Vectors of two models of the same dimension are still not comparable.
    identity = ours.get("identity")
    return (
        type(identity) is str
        and theirs.get("identity") == identity
        and theirs.get("dimension") == ours.get("dimension")
    )


def _lacks(request: Embedding, offer: Mapping[str, Any]) -> UnfitEngine | None:
    """What of the call the engine does not advertise."""
    encodings = offer.get("encodings")
    if request.encoding is not None and not (type(encodings) is list and request.encoding in encodings):
        return UnfitEngine(f"encoding {request.encoding[:40]} is not advertised", option="encoding")
    modalities = offer.get("modalities")
    # An engine that states no modalities takes text.
    missing = request.modalities - frozenset(modalities if type(modalities) is list and modalities else ["text"])
    if missing:
        return UnfitEngine(f"inputs of modality {', '.join(sorted(missing))} are not advertised", option="inputs")
    return None


def _too_many(request: Embedding, offer: Mapping[str, Any]) -> UnfitEngine | None:
    limit = _limit(offer)
    most = len(request.inputs) if limit is None else limit * MAX_PARTS
    if len(request.inputs) <= most:
        return None
    return UnfitEngine(
        f"at most {most} inputs are taken at once, not {len(request.inputs)}", field=request.name, most=most
    )


def _limit(offer: Mapping[str, Any]) -> int | None:
    limit = offer.get("batchLimit")
    return limit if type(limit) is int and limit >= 1 else None


def _offer(advertisement: Advertisement | None, capability: str) -> Mapping[str, Any]:
    """The fields of a capability; empty if the engine states none."""
    offer = None if advertisement is None else advertisement.capabilities.get(capability)
    return offer if type(offer) is dict else {}
