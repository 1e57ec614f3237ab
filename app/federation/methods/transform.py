"""`query/transform`: forwarded to the first engine that has the method. Separate because each RCP method has a
module."""

from app.federation.calls import MethodCall
from app.federation.candidates import UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forward import Result, forward, plain
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.protocol.advertisement import Advertisement
from app.protocol.method_params import read_transform, transformed
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings


async def transform(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Rewrite a query (RCP §7.8). Raises RcpError."""
    request = read_transform(call.params)

    def fit(engine: Engine, advertisement: Advertisement) -> UnfitEngine | None:
        # Unlike for `graph`, an engine must list the method: there is no default one.
        offer = advertisement.capabilities["transform"]
        methods = offer.get("methods") if type(offer) is dict else None
        if type(methods) is list and request.method in methods:
            return None
        return UnfitEngine(f"method {request.method[:40]} is not advertised", option="method")

    candidates = candidates_for(call, members, "transform", read_gateway(call.params.get("x-gateway")), fit)
    return await forward(
        call, candidates, members, settings, instrumentation, plain(call.method, request.sent, transformed)
    )
