"""The FastAPI application, and two shortcuts past its routing: direct endpoints, and refusals under overload."""

from collections.abc import Mapping
from itertools import count
from secrets import token_hex
from types import MappingProxyType

from fastapi import FastAPI

from app.api.admission import RETRY_AFTER_MS, overload_error
from app.api.gateway_state import GatewayState
from app.api.http_requests import valid_request_id
from app.api.responses import RETRY_AFTER, Asgi, Receive, Scope
from app.api.rpc_path import BASE, ENGINES
from app.api.streaming import Send
from app.protocol import envelope
from app.telemetry.logs import logger


class GatewayApplication(FastAPI):
    """FastAPI with a direct path to the endpoints of RCP and MCP.

    Its five built-in layers of middleware and its router cost 7 % of the CPU time of a retrieve, and do nothing for
    these endpoints. Middleware that the settings add is never skipped.
    """

    direct: Mapping[str, Asgi] = MappingProxyType({})
    """Path -> endpoint of its route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only exact paths are direct; those with an engine id go through the router.
        endpoint = self.direct.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is not None and not self.user_middleware:
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class OverloadRefusal:
    """The refusals that the HTTP server sends itself while the gateway is full: before ASGI and without the body."""

    retry_after = RETRY_AFTER_MS / 1000
    """Seconds after which a refused caller may retry."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        # Encoded once, because refusals have to stay cheap under overload.
        self._fault = overload_error()
        self._body = envelope.failure(None, self._fault)
        self._request_ids = map(f"{token_hex(6)}-{{:x}}".format, count(1))

    def refuses(self, scope: Scope) -> bool:
        """Whether to refuse the request of this scope now. Only RCP requests are refused."""
        if not self._state.admission.full or scope["method"] != "POST":
            return False
        # Probes and operators must get through, above all when the gateway is overloaded.
        path = scope["path"]
        return path == BASE or path.startswith(f"{BASE}/") or (path.startswith(ENGINES) and BASE in path)

    def refusal(self, scope: Scope) -> tuple[bytes, bytes]:
        """(header lines, body) of the 503. Counts and logs the refusal."""
        fault = self._fault
        request_id = valid_request_id(scope["headers"]) or next(self._request_ids)
        self._state.metrics.server.refused("full")
        self._state.metrics.error(fault.code)
        logger().info("refused", request_id=request_id, status=503, code=fault.code, detail=fault.message)
        lines = b"x-request-id: %b\r\ncontent-type: application/json\r\n%b: %b\r\n" % (
            request_id.encode(),
            *RETRY_AFTER,
        )
        return lines, self._body

    def __repr__(self) -> str:
        return f"<OverloadRefusal of {self._state.admission!r}>"
