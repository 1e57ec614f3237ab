"""One accepted request: its params, its deadline and its caller. Made once by the API, for every method alike."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.federation.tenants import Tenant
from app.protocol.retrieve_params import CallMeta, RetrieveParams

MIN_SECONDS = 0.002
"""With less time left than this, no engine is asked: the `deadlineMs` passed on would be zero."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it was accepted. Times are in event-loop seconds."""

    params: Any
    meta: CallMeta
    started: float
    deadline: float
    request_id: str
    default_depth: int = 3
    """Levels of aggregators below this gateway if the caller does not say, and the most it may ask for."""
    passed_on: Mapping[str, Any] = field(default_factory=dict)
    """Members of the caller's `_meta` that every engine receives unchanged."""
    method: str = "retrieve"
    tenant: Tenant | None = None
    """The caller's tenant; None if no tenants are configured."""
    caller: str = ""
    """The credential, or the address of a caller without one; empty if there is neither."""
    secret: bytes = field(default=b"", repr=False)
    """Key for the memory ids of this tenant; empty without tenants."""

    @property
    def tenant_id(self) -> str | None:
        """The id of the caller's tenant; None without tenants."""
        return None if self.tenant is None else self.tenant.id


@dataclass(frozen=True, slots=True)
class RetrieveCall(Call):
    """A `retrieve`, with its params parsed."""

    params: RetrieveParams
    screened: bool = False
    """Whether the gateway scans the texts of hits itself."""


@dataclass(frozen=True, slots=True)
class MethodCall(Call):
    """A call of any other method, with its params as sent: each method parses its own."""

    params: Mapping[str, Any]


# Not cached: time passes while a request waits for engines.
def time_left(call: Call) -> float:
    """Seconds until the deadline."""
    return call.deadline - asyncio.get_running_loop().time()


def time_waited(call: Call) -> float:
    """Seconds since the request arrived, at the resolution of the event-loop clock."""
    return max(0.0, asyncio.get_running_loop().time() - call.started)
