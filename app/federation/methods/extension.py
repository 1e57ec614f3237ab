"""`x-<vendor>/<name>`: forwarded to the first engine that advertises `x-<vendor>`, with params and result unchanged.

The call may change data, so it is not repeated once it was sent, unless it has an idempotency key. Separate because
each RCP method has a module.
"""

from app.federation.calls import MethodCall
from app.federation.candidates import candidates_for
from app.federation.forward import Result, forward, plain
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.protocol.documents import read_idempotency_key
from app.protocol.method_names import gate_of
from app.protocol.param_fields import GATEWAY_PARAMS
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings


async def extend(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Forward a vendor method (RCP §6.2). Raises RcpError."""
    vendor = gate_of(call.method)
    assert vendor is not None, "dispatch accepts no other methods here"
    # The gateway's own params are not the vendor's.
    sent = {key: value for key, value in call.params.items() if key not in GATEWAY_PARAMS}
    once = read_idempotency_key(call.passed_on) is None
    candidates = candidates_for(call, members, vendor, read_gateway(call.params.get("x-gateway")))
    forwarded = plain(call.method, sent, idempotent=not once)
    return await forward(call, candidates, members, settings, instrumentation, forwarded)
