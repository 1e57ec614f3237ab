"""The caller of a message: one value, made once for each message by HTTP, MCP or stdio and passed on unchanged.

A named tuple, since one is made for every request.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from app.federation.session_engines import SessionEngines
from app.federation.tenants import Tenant
from app.telemetry.tracing import Trace

ARRIVAL = "rcp_gateway.arrival"
"""The ASGI extension in which the server notes when a request came: `{"time": event-loop seconds}`."""


ANSWER_AT_ONCE = "rcp_gateway.answer_at_once"
"""The ASGI extension by which the server takes a whole 200 in one call: `(header lines, body) -> taken`. A middleware
that has to see or change answers removes it from the scope."""


class Caller(NamedTuple):
    """One caller of one message."""

    request_id: str
    """Names the request in the log and, over HTTP, in the answer's `X-Request-ID`."""
    session: str | None = None
    """Within which its requests can be called off; None: only streams can be. Over HTTP as it was sent, not trusted."""
    engine: str | None = None
    """The one engine it speaks to through this gateway; None: the whole federation."""
    address: str = ""
    """Where it connects from, without the port; empty where there is no such thing, or where a key says who it is."""
    tenant: Tenant | None = None
    """Through whom everything is seen; None where callers are not told apart, and everything is everybody's."""
    key_id: str | None = None
    """Names the credential in the log."""
    since: float | None = None
    """When its first bytes came (event-loop seconds): its deadline counts from then. None: just now."""
    trace: Trace | None = None
    """Where it stands in a trace, if it does."""
    begun: SessionEngines | None = None
    """The engines that its session began with; None outside of sessions."""
    log_level: str | None = None
    """What its session wants to have logged, where a request does not say (RCP §17.1)."""
    sent_id: str = ""
    """The `X-Request-ID` that it sent, if it is sound; engines are sent it as well."""

    @property
    def cancel_scope(self) -> str | None:
        """The session as a name that no other tenant's session has."""
        if self.session is None or self.tenant is None:
            return self.session
        return f"{self.tenant.id}:{self.session}"

    @property
    def stream_scope(self) -> str | None:
        """In place of a session: the caller itself, as a name that no session has, for a header holds no newline."""
        return f"\n{self.name}" if self.name else None

    @property
    def name(self) -> str:
        """The caller without its session: its key, else its address."""
        return self.address if self.tenant is None else f"{self.tenant.id}/{self.key_id}/{self.address}"


def arrival_of(scope: MutableMapping[str, Any]) -> float:
    """When the first bytes of a request came (event-loop seconds): as the server noted it, else now."""
    noted = (scope.get("extensions") or {}).get(ARRIVAL)
    return asyncio.get_running_loop().time() if noted is None else float(noted["time"])
