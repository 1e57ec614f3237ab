"""`query/transform`: by the first engine that has the method.

It decides who fits. It refuses to know what a question becomes.
"""

from app.federation.call import MethodCall
from app.federation.candidates import Misfit, candidates_for
from app.federation.engine import Engine
from app.federation.forward import Result, forward, plain
from app.federation.membership import Members
from app.federation.witness import Witness
from app.protocol.capabilities import Advertisement
from app.protocol.params import read_gateway
from app.protocol.transform import read_transform, transformed
from app.settings.schema import GatewaySettings


async def transform(call: MethodCall, members: Members, settings: GatewaySettings, witness: Witness) -> Result:
    """Rewrite a question (RCP §7.8). Raises RcpError."""
    wish = read_transform(call.params)

    def fit(engine: Engine, said: Advertisement) -> Misfit | None:
        offer = said.capabilities["transform"]
        methods = offer.get("methods") if type(offer) is dict else None
        if type(methods) is list and wish.method in methods:
            return None
        return Misfit(f"method {wish.method[:40]} is not advertised", option="method")

    candidates = candidates_for(call, members, "transform", read_gateway(call.params.get("x-gateway")), fit)
    return await forward(call, candidates, members, settings, witness, plain(call.method, wish.sent, transformed))
