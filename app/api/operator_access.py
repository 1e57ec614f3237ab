"""Access control of the operator endpoints: the role `admin`, or without authentication a request from this machine.

Requests from pages of other sites are refused, so that such a page cannot act in the name of an operator who visits it.
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
"""Methods of read-only endpoints. HEAD returns what GET does, without the body (RFC 9110 §9.3.2)."""

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
"""How the names of headers begin that proxies add. Behind a proxy, a loopback address says nothing of the client."""


class Operator(NamedTuple):
    """An authorized operator, as the log names it."""

    tenant: Tenant | None
    """None without authentication."""
    key: str | None
    address: str


class OperatorRefused(Exception):
    """A refused operator request: the HTTP status, the error, and response headers."""

    def __init__(self, status: int, fault: RcpError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, fault)
        self.status = status
        self.fault = fault
        self.headers = dict(headers or {})


async def authorize_operator(request: Request, state: GatewayState) -> Operator:
    """The operator that sent the request. Raises OperatorRefused."""
    address = request.client.host if request.client else ""
    # Browsers set this header and pages cannot change it; other clients do not send it.
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise OperatorRefused(403, Unauthorized("pages of other sites may not use the operator endpoints"))
    if state.authenticator is not None:
        try:
            principal = await state.authenticator.admin(request.scope)
        except AuthError as away:
            raise operator_refusal(away) from None
        return Operator(principal.tenant, principal.key_id, address)
    if not (_is_loopback(address) and _names_loopback(request.headers.get("host", ""))):
        raise OperatorRefused(
            403,
            Unauthorized(
                f"without authentication, the operator endpoints accept requests from this machine only; {REMEDY}"
            ),
        )
    # nginx adds no header by default, but uses HTTP/1.0, which no browser and no common HTTP client does.
    if request.scope.get("http_version") == "1.0" or any(name.startswith(PROXY_HEADERS) for name in request.headers):
        raise OperatorRefused(
            403, Unauthorized(f"behind a proxy, the operator endpoints require authentication; {REMEDY}")
        )
    return Operator(None, None, address)


def operator_refusal(away: AuthError) -> OperatorRefused:
    """An authentication error as OperatorRefused."""
    return OperatorRefused(away.status, away.fault, {name.decode(): value.decode() for name, value in away.headers})


async def body_of(request: Request, most: int) -> dict[str, Any]:
    """The JSON object in the body, of at most `most` bytes. Raises OperatorRefused."""
    # A form on a page of another site cannot send this content type without a preflight request (CORS).
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise OperatorRefused(415, InvalidRequest("the Content-Type must be application/json"))
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
    # The parser marks unusable params only, for JSON-RPC. This body has no params of its own, so all of it is refused.
    if isinstance(params, envelope.UnusableParams):
        raise OperatorRefused(400, InvalidParams(params.fault, field=params.field))
    return body


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    # ::ffff:127.0.0.1 is loopback, too, but `is_loopback` is false for it in some versions of Python.
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or (mapped is not None and mapped.is_loopback)


def _names_loopback(host: str) -> bool:
    """Whether the Host header names this machine. Any other name could be DNS rebinding: a foreign name that resolves
    to 127.0.0.1."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() == "localhost" or _is_loopback(name.strip("[]"))
