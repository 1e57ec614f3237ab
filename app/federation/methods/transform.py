"""`query/transform` (RCP §7.8): answered by the first engine that offers the method.

Separate because each method of RCP has its own module.
"""

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
    """Rewrite a question (RCP §7.8). Raises RcpError."""
    wish = read_transform(call.params)

    def fit(engine: Engine, said: Advertisement) -> UnfitEngine | None:
        offer = said.capabilities["transform"]
        methods = offer.get("methods") if type(offer) is dict else None
        if type(methods) is list and wish.method in methods:
            return None
        return UnfitEngine(f"method {wish.method[:40]} is not advertised", option="method")

    candidates = candidates_for(call, members, "transform", read_gateway(call.params.get("x-gateway")), fit)
    return await forward(
        call, candidates, members, settings, instrumentation, plain(call.method, wish.sent, transformed)
    )
