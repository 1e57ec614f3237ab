"""What an error of an engine means: does it count against the engine, does it take it down, is a retry worthwhile?

Breaker, replicas, availability and retries all use these functions. `Suspicion` withholds errors that may follow from
the params: one caller's bad query must not take an engine from all others. After enough of them in a row the gateway
makes a plain call of its own (the control call), and they count only if that fails as well.
"""

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

from app.engines.transport import ConnectionLost
from app.protocol.envelope import canonical
from app.protocol.errors import (
    BackendUnavailable,
    BadStatus,
    CapabilityMissing,
    Conflict,
    ConnectFailed,
    DeadlineExceeded,
    InternalError,
    InvalidParams,
    InvalidRequest,
    LegError,
    LegRateLimited,
    LegTimeout,
    NotFound,
    NotInitialized,
    OptionUnsupported,
    ParseError,
    PayloadTooLarge,
    ProtocolViolation,
    Refused,
    TlsFailed,
    UnknownMethod,
)

_SUSPECT_CODES = frozenset({InternalError.code, ParseError.code})
_SUSPECT_STATUS = 500
"""What programs answer whose code fell over: at this request, or at every one."""

_FAILING_CODES = frozenset({BackendUnavailable.code, DeadlineExceeded.code})
"""Codes with which an engine says that it, and not the request, is at fault. -32603 is a ProtocolViolation here."""

_PERMANENT_STATUSES = frozenset({401, 403, 404})
"""Errors caused by a wrong entry in the registry, neither by the request nor by the engine's health."""

_STRAYED_CODES = frozenset({NotInitialized.code, CapabilityMissing.code, UnknownMethod.code})
"""After a handshake, for what the engine advertises: only the one who was asked is another than it should be."""


_PARAMS_CODES = frozenset(
    {InvalidRequest.code, InvalidParams.code, OptionUnsupported.code, PayloadTooLarge.code, NotFound.code}
    | {Conflict.code, CapabilityMissing.code, UnknownMethod.code, NotInitialized.code}
)
"""They follow from the request, whatever HTTP status they come with."""


def is_suspect(fault: LegError) -> bool:
    """Whether it may follow from the params as well as from the engine, which is alive in any case (suspicion.py)."""
    return fault.code in _SUSPECT_CODES or (
        isinstance(fault, BadStatus) and fault.status == _SUSPECT_STATUS and fault.code is None
    )


def counts_as_failure(fault: LegError) -> bool:
    """Whether it counts as a failure of the engine; what refuses one request, or is our own doing, does not."""
    if isinstance(fault, LegTimeout):
        # Without an attempt nothing was sent: the time passed in a queue of this gateway.
        return fault.attempts > 0
    if isinstance(fault, ConnectFailed | TlsFailed | ProtocolViolation):
        return True
    if isinstance(fault, BadStatus):
        # 4xx is about one request; 5xx is about the server.
        return fault.status is None or fault.status >= 500
    if not isinstance(fault, Refused) or fault.code in _PARAMS_CODES:
        return False
    return fault.code in _FAILING_CODES or (fault.status or 0) >= 500


def marks_down(fault: LegError) -> bool:
    """Whether the engine counts as down until it does something right."""
    if isinstance(fault, BadStatus) and fault.status is not None and 300 <= fault.status < 500:
        # A redirect, 401, 403 or 404 shows a wrong URL or credential: every call will fail.
        return fault.status < 400 or fault.status in _PERMANENT_STATUSES
    return counts_as_failure(fault) and not isinstance(fault, Refused) and fault.code not in _SUSPECT_CODES


def concerns_replica(fault: LegError) -> bool:
    """Whether another replica may well succeed: the error is about the address, not about the request."""
    if isinstance(fault, Refused):
        return fault.code in _STRAYED_CODES
    if fault.code in _SUSPECT_CODES:
        return False  # -32603 may be repeated once and no more (RCP §12), wherever
    return isinstance(fault, TlsFailed | ProtocolViolation) or (isinstance(fault, BadStatus) and marks_down(fault))


def worth_repeating(fault: LegError, idempotent: bool, repeats: int, elsewhere: bool = False) -> bool:
    """Whether the same question may have an answer a moment later (RCP §12), or `elsewhere`: from another replica.

    `repeats`: how often it was asked again. What was sent and is not idempotent is never asked twice. -32603 is asked
    again once. An answer that began and broke off, or makes no sense, would likely do so again; so would TLS.
    """
    # Nothing was sent, so even a call that is not idempotent can be repeated.
    if isinstance(fault, ConnectFailed):
        return True
    if not idempotent:
        return False
    if elsewhere and concerns_replica(fault):
        return True
    if isinstance(fault, BadStatus):
        # 501 is permanent: the method is not implemented.
        return fault.status is not None and fault.status >= 500 and fault.status != 501
    if isinstance(fault, LegRateLimited):
        # Without a time, a repetition would only add to the overload.
        return fault.retry_after_ms is not None
    if isinstance(fault, Refused):
        return fault.code in _FAILING_CODES
    if isinstance(fault, ProtocolViolation):
        return isinstance(fault, ConnectionLost) or (fault.code == InternalError.code and not repeats)
    return isinstance(fault, LegTimeout)


MAX_KNOWN: Final = 256
KNOWN_SECONDS: Final = 60.0
"""How many params that failed are remembered, and for how long: they are not sent a second time per question."""

CONTROL_PAUSE: Final = 1.0
"""Seconds between two control calls of an engine that answers them."""

CONTROL_CALLS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "retrieve": {"query": "test", "k": 1},
        "embed": {"inputs": ["test"], "texts": ["test"]},
        "embed/sparse": {"inputs": ["test"], "texts": ["test"]},
        "embed/multi": {"inputs": ["test"], "texts": ["test"]},
        "rerank": {"query": "test", "passages": ["test"], "documents": ["test"]},
        "memory/recall": {"query": "test"},
    }
)
"""Method -> params that every engine with the method must be able to answer. Methods without them never count."""


class Suspicion:
    """The errors of one engine that may follow from the params. Times are event-loop seconds."""

    __slots__ = ("_known", "_next_control", "enough", "pending", "withheld")

    def __init__(self, enough: int) -> None:
        """`enough`: errors in a row after which a control call is due."""
        self.withheld = 0
        """Errors since the last success that have not been counted yet."""
        self.pending = False
        """Whether a control call is under way."""
        self.enough = enough
        self._known: dict[bytes, float] = {}
        self._next_control = 0.0

    def failed(self, params: Mapping[str, Any], now: float, *, probing: bool) -> bool:
        """Note an error; says whether a control call is due. `probing`: the breaker waits for a verdict."""
        # Reinserted at the end: the oldest params are evicted first.
        digest = _digest(params)
        self._known.pop(digest, None)
        self._known[digest] = now + KNOWN_SECONDS
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self.withheld += 1
        if self.pending:
            return False
        return probing or (self.withheld >= self.enough and now >= self._next_control)

    def knows(self, params: Mapping[str, Any], now: float) -> bool:
        """Whether these very params failed a short while ago."""
        if not self._known:
            return False
        return now < self._known.get(_digest(params), 0.0)

    def cleared(self) -> None:
        """The engine answered something: what failed before followed from its params."""
        self.withheld = 0

    def acquitted(self, now: float) -> None:
        """The control call was answered."""
        self.cleared()
        self._next_control = now + CONTROL_PAUSE

    def take_withheld(self) -> int:
        """The control call failed as well: how many errors count now, itself included."""
        count, self.withheld = self.withheld + 1, 0
        return count

    def __repr__(self) -> str:
        return f"<Suspicion {self.withheld} errors withheld, {len(self._known)} known params>"


def _digest(params: Mapping[str, Any]) -> bytes:
    """Of all that a caller wrote: what differs from call to call is in `_meta`."""
    # `_meta` holds deadlines and request ids, which differ from call to call.
    sent = {name: value for name, value in params.items() if name != "_meta"}
    return blake2b(canonical(sent), digest_size=16).digest()
