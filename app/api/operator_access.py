"""Access of operators: callers with the role `admin`, or, where there are no keys, requests from this machine.

Web pages of other sites are refused, so that they cannot act in the name of an operator who visits them.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

from fastapi import Request

from app.api.auth.principal import AuthError
from app.api.gateway_state import GatewayState
from app.federation.tenants import Tenant
from app.protocol import envelope
from app.protocol.errors import InvalidParams, InvalidRequest, ParseError, PayloadTooLarge, RcpError, Unauthorized

REMEDY = "set auth.mode to keys and give a tenant the role 'admin' (docs/guides/tenants-and-keys.md)"

READ_METHODS = ["GET", "HEAD"]
"""How what can be looked at is asked for; the answer to HEAD is that to GET without its body (RFC 9110 §9.3.2)."""

PROXY_HEADERS = (
    "via",
    "forwarded",
    "x-real-ip",
    "x-original-",
    "x-forwarded-",
    "x-envoy-",
    "x-request-start",
    "cdn-loop",
)
"""What headers begin with that a proxy adds: behind one, an address of this machine says nothing."""


class Operator(NamedTuple):
    """An operator as the log names it."""

    tenant: Tenant | None
    """None: callers are not told apart."""
    key: str | None
    address: str


class OperatorRefused(Exception):
    """Somebody is kept out, or what it sent is refused: the HTTP status and the error."""

    def __init__(self, status: int, fault: RcpError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, fault)
        self.status = status
        self.fault = fault
        self.headers = dict(headers or {})


async def authorize_operator(request: Request, state: GatewayState) -> Operator:
    """The operator that asks. Raises OperatorRefused."""
    address = request.client.host if request.client else ""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise OperatorRefused(403, Unauthorized("another site's page may not use the operator's doors"))
    if state.authenticator is not None:
        try:
            principal = await state.authenticator.admin(request.scope)
        except AuthError as away:
            raise operator_refusal(away) from None
        return Operator(principal.tenant, principal.key_id, address)
    if not (_is_loopback(address) and _names_loopback(request.headers.get("host", ""))):
        raise OperatorRefused(
            403, Unauthorized(f"without credentials the operator's doors open to this machine only; {REMEDY}")
        )
    # nginx without any setting adds no header; it asks with HTTP/1.0, which no browser and no tool of an operator does.
    if request.scope.get("http_version") == "1.0" or any(name.startswith(PROXY_HEADERS) for name in request.headers):
        raise OperatorRefused(403, Unauthorized(f"through a proxy the operator's doors need credentials; {REMEDY}"))
    return Operator(None, None, address)


def operator_refusal(away: AuthError) -> OperatorRefused:
    """What the guard said, for these doors."""
    return OperatorRefused(away.status, away.fault, {name.decode(): value.decode() for name, value in away.headers})


async def body_of(request: Request, most: int) -> dict[str, Any]:
    """The JSON object that was sent, of at most so many bytes. Raises OperatorRefused.

    It must be declared as JSON: a form on another site's page cannot do that.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise OperatorRefused(415, InvalidRequest("the body must be application/json"))
    parts = bytearray()
    async for chunk in request.stream():
        parts += chunk
        if len(parts) > most:
            raise OperatorRefused(413, PayloadTooLarge(f"the body is longer than {most} bytes"))
    try:
        body = envelope.read_body(bytes(parts))
    except ParseError as fault:
        raise OperatorRefused(400, fault) from None
    if type(body) is not dict:
        raise OperatorRefused(400, InvalidRequest("the body must be a JSON object"))
    params = body.get("params")
    if isinstance(params, envelope.UnusableParams):  # the body is no message, so what is wrong is so as a whole
        raise OperatorRefused(400, InvalidParams(params.fault, field=params.field))
    return body


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or (mapped is not None and mapped.is_loopback)


def _names_loopback(host: str) -> bool:
    """Whether the browser believes that it speaks to this machine: a name of others may have been bent to lead here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() == "localhost" or _is_loopback(name.strip("[]"))
