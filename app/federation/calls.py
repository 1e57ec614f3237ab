"""The first of the four values that travel: who asks what, until when.

Made at the door in one place for every method, frozen from there on. It refuses to know which engines there are.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.federation.tenants import Tenant
from app.protocol.retrieve_params import CallMeta, RetrieveParams

LEAST_SECONDS = 0.002
"""With less time than this left nobody is asked any more: no whole millisecond less could be passed on."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request for engines as it was accepted at the door. Times are event-loop seconds."""

    params: Any
    meta: CallMeta
    started: float
    deadline: float
    request_id: str
    default_depth: int = 3
    """Levels of aggregators below us when the caller does not say, and the most it may say."""
    passed_on: Mapping[str, Any] = field(default_factory=dict)
    """What of the caller's `_meta` every engine is handed as it is."""
    method: str = "retrieve"
    tenant: Tenant | None = None
    """Through whom everything is seen; None where callers are not told apart."""
    caller: str = ""
    """Names the credential, or the address of a caller without one; empty where there is neither."""
    secret: bytes = field(default=b"", repr=False)
    """Key of the names that this tenant is given; empty where none are read or made."""


@dataclass(frozen=True, slots=True)
class RetrieveCall(Call):
    """A `retrieve`, its params read."""

    params: RetrieveParams
    screened: bool = False
    """Whether the gateway looks at the texts of hits itself."""


@dataclass(frozen=True, slots=True)
class MethodCall(Call):
    """A call of any other method, its params as they were sent: each method reads its own, after gating."""

    params: Mapping[str, Any]


def time_left(call: Call) -> float:
    """Seconds."""
    return call.deadline - asyncio.get_running_loop().time()


def time_waited(call: Call) -> float:
    """Seconds from the arrival of the request until now, as exact as the event loop's clock."""
    return max(0.0, asyncio.get_running_loop().time() - call.started)
