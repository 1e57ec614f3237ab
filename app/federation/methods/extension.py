"""`x-<vendor>/<name>`: to the first engine that advertises `x-<vendor>`, params and result as they are.

It decides that such a call may do something, so that it is not repeated once it was sent, unless its caller says by an
idempotency key that it may be. It refuses to know what vendors mean.
"""

from app.federation.calls import MethodCall
from app.federation.candidates import candidates_for
from app.federation.forward import Result, forward, plain
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.protocol.documents import read_idempotency_key
from app.protocol.method_names import gate_of
from app.protocol.param_fields import OURS
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings


async def extend(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Hand a vendor's own method on (RCP §6.2). Raises RcpError."""
    vendor = gate_of(call.method)
    assert vendor is not None, "the door lets no other method through"
    sent = {key: value for key, value in call.params.items() if key not in OURS}
    once = read_idempotency_key(call.passed_on) is None
    candidates = candidates_for(call, members, vendor, read_gateway(call.params.get("x-gateway")))
    forwarded = plain(call.method, sent, idempotent=not once)
    return await forward(call, candidates, members, settings, instrumentation, forwarded)
