"""The caller of a message, as HTTP, MCP and stdio pass it to the dispatcher."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from app.federation.session_engines import SessionEngines
from app.federation.tenants import Tenant
from app.telemetry.tracing import Trace

ARRIVAL = "rcp_gateway.arrival"
"""The ASGI extension with the arrival time of a request: `{"time": event-loop seconds}`."""

ANSWER_AT_ONCE = "rcp_gateway.answer_at_once"
"""The ASGI extension with which the server takes a whole response of status 200 in one call: `(header lines, body) ->
taken`. Middleware that reads or changes responses removes it from the scope."""


class Caller(NamedTuple):
    """One caller of one message. A named tuple, because creating one for each request must be cheap."""

    request_id: str
    """Names the request in the log and, over HTTP, in the answer's `X-Request-ID`."""
    session: str | None = None
    """The session within which requests can be cancelled. Over HTTP it is what the client sent, and not trusted."""
    engine: str | None = None
    """The engine that is addressed by itself; None for the federation."""
    address: str = ""
    """The client address without port; empty over stdio, and for authenticated callers other than `anonymous`."""
    tenant: Tenant | None = None
    """The tenant whose engines, roles and limits apply; None without authentication."""
    key_id: str | None = None
    """Names the credential in the log."""
    since: float | None = None
    """Arrival of the first bytes (event-loop seconds), from which the deadline counts. None: now."""
    trace: Trace | None = None
    """The trace context that the caller sent, if any."""
    begun: SessionEngines | None = None
    """The engines with which its session began (RCP §13.2); None outside of sessions."""
    log_level: str | None = None
    """The log level of the session, for requests without one of their own (RCP §17.1)."""
    sent_id: str = ""
    """The `X-Request-ID` of the caller, if it is valid; it is forwarded to engines."""

    @property
    def cancel_scope(self) -> str | None:
        """Identifies the session. It contains the tenant, so that no other tenant can use the same name."""
        if self.session is None or self.tenant is None:
            return self.session
        return f"{self.tenant.id}:{self.session}"

    @property
    def stream_scope(self) -> str | None:
        """Identifies a caller without session, whose streams can be cancelled."""
        # A header cannot contain a newline, so no session has this name.
        return f"\n{self.name}" if self.name else None

    @property
    def name(self) -> str:
        """The caller without its session: tenant, key and address, or only the address."""
        return self.address if self.tenant is None else f"{self.tenant.id}/{self.key_id}/{self.address}"


def arrival_of(scope: MutableMapping[str, Any]) -> float:
    """Arrival of the first bytes of a request (event-loop seconds); now if the server did not record it."""
    noted = (scope.get("extensions") or {}).get(ARRIVAL)
    return asyncio.get_running_loop().time() if noted is None else float(noted["time"])
