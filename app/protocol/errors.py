"""The one error tree of the gateway; every foreign error is translated into it once, where it is met.

GatewayError
├── RcpError                 error response to the caller: a JSON-RPC error of RCP §12
│   ├── ParseError           -32700      ├── Cancelled            -32006
│   ├── InvalidRequest       -32600      ├── BackendUnavailable   -32010
│   ├── InvalidParams        -32602      ├── RateLimited          -32011
│   ├── InternalError        -32603      │   └── GatewayBusy      -32011, sent with HTTP status 503
│   ├── NotInitialized       -32001      ├── Unauthorized         -32012
│   ├── VersionMismatch      -32002      ├── PayloadTooLarge      -32013
│   ├── CapabilityMissing    -32003      ├── DeadlineExceeded     -32014
│   ├── UnknownMethod        -32004      ├── NotFound             -32015
│   └── OptionUnsupported    -32005      ├── Conflict             -32016
│                                        └── ForeignError         an engine's own code
├── StateUnreachable         the shared state is unreachable; handled by a fallback, never sent to a caller
└── LegError                 failure of one engine call; `kind` is its class in notes, metrics and logs
    ├── LegTimeout           timeout          ├── ResponseTooLarge   too_large
    ├── ConnectFailed        connect          ├── LegRateLimited     rate_limited
    │   └── Departed         departed; the engine changed since the session began
    ├── TlsFailed            tls              ├── Refused            refused
    ├── BadStatus            http_status      ├── Overloaded         overloaded
    ├── ProtocolViolation    protocol         ├── BreakerOpen        breaker_open
    │   └── Severed          protocol; before an answer began (engines/transport.py)
    └── LegFault             internal         └── LegLate            late
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

MAX_MESSAGE = 300
"""Characters of a foreign message that are kept in a note."""


class GatewayError(Exception):
    """Root of everything this gateway raises on purpose."""


class StateUnreachable(GatewayError):
    """The state shared by gateways cannot be read or written now."""


class RcpError(GatewayError):
    """A JSON-RPC error as RCP §12 defines it: `code`, `message` and the structured `data`.

    `engines`: what became of those that were asked, for the log; the caller reads of them in `data`.
    """

    code: int = -32603

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = data
        self.engines: Sequence[Mapping[str, Any]] = ()

    def body(self) -> dict[str, Any]:
        """The `error` member of the response: `{code, message, data?}`."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data:
            error["data"] = self.data
        return error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.message!r}, {self.data!r})"


class ParseError(RcpError):
    code = -32700


class InvalidRequest(RcpError):
    code = -32600


class InvalidParams(RcpError):
    """Malformed regardless of capabilities; `data.field` names the field."""

    code = -32602


class InternalError(RcpError):
    code = -32603


class NotInitialized(RcpError):
    code = -32001


class VersionMismatch(RcpError):
    code = -32002


class CapabilityMissing(RcpError):
    """An RCP method that no engine supports."""

    code = -32003


class UnknownMethod(RcpError):
    """Not a method of RCP; takes precedence over CapabilityMissing."""

    code = -32004


class OptionUnsupported(RcpError):
    """The option's value is not in the advertised set; `data.option` names it."""

    code = -32005


class Cancelled(RcpError):
    code = -32006


class BackendUnavailable(RcpError):
    code = -32010


class RateLimited(RcpError):
    code = -32011


class GatewayBusy(RateLimited):
    """The gateway, or every engine that could be asked, has too much to do; nothing was sent."""


class Unauthorized(RcpError):
    code = -32012


class PayloadTooLarge(RcpError):
    code = -32013


class DeadlineExceeded(RcpError):
    code = -32014


class NotFound(RcpError):
    code = -32015


class Conflict(RcpError):
    code = -32016


class ForeignError(RcpError):
    """An engine's own JSON-RPC error, passed on with its code (a required engine failed)."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message, **data)
        self.code = code


class LegError(GatewayError):
    """One engine did not answer. `kind` is the class; `attempts` counts the requests that were sent for it.

    `code` is the JSON-RPC code if the engine answered one, `retry_after_ms` what it asked us to wait, `status` the HTTP
    status if that was not 200; `free`, `replica` and `hedged` are as in a Reply.
    """

    kind: ClassVar[str] = "protocol"

    def __init__(
        self, message: str, *, code: int | None = None, retry_after_ms: int | None = None, status: int | None = None
    ) -> None:
        message = clip(message)
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry_after_ms = retry_after_ms
        self.status = status
        self.culprit: dict[str, str] | None = None
        """`field` or `option` of the request that the engine named."""
        self.attempts = 1
        self.free = 0
        self.replica: str | None = None
        self.hedged = False

    def reword(self, message: str) -> None:
        """Replace the message."""
        self.message = clip(message)
        self.args = (self.message,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {self.message!r}, code={self.code}, attempts={self.attempts})"


class LegTimeout(LegError):
    kind = "timeout"


class ConnectFailed(LegError):
    """No connection, or a child process that does not start: nothing was sent."""

    kind = "connect"


class Departed(ConnectFailed):
    """The engine changed since the caller's session began; nothing was sent."""

    kind = "departed"


class TlsFailed(LegError):
    kind = "tls"


class BadStatus(LegError):
    kind = "http_status"


class ProtocolViolation(LegError):
    """The engine answered something that is not HTTP, not JSON, not JSON-RPC or not RCP."""

    kind = "protocol"


class ResponseTooLarge(LegError):
    kind = "too_large"


class LegRateLimited(LegError):
    kind = "rate_limited"


class Refused(LegError):
    """The engine answered with a JSON-RPC error of its own; `code` carries it."""

    kind = "refused"


class Overloaded(LegError):
    """The concurrency limit for that engine is reached; nothing was sent."""

    kind = "overloaded"


class BreakerOpen(LegError):
    """Circuit breaker open after repeated failures; nothing was sent. `retry_after_ms`: time to the next probe."""

    kind = "breaker_open"


class LegLate(LegError):
    """Cancelled because enough other engines had answered (`retrieve.quorum`)."""

    kind = "late"


class LegFault(LegError):
    """An internal error during one engine call: that call fails, the request goes on."""

    kind = "internal"


CALL_KINDS: tuple[str, ...] = tuple(sorted(error.kind for error in LegError.__subclasses__()))
"""Every failure class of an engine call, for metrics that must exist from the start."""

RCP_CODES: tuple[int, ...] = tuple(sorted({error.code for error in RcpError.__subclasses__()}))
"""Every code of RCP §12 (and of JSON-RPC) that has a class here, whether anything answers it or not: for metrics that
must exist from the start. A ForeignError may carry any other."""


def clip(message: str) -> str:
    """Foreign text for a note: without control characters, at most MAX_MESSAGE characters."""
    cleaned = "".join(c if c.isprintable() else " " for c in message[: MAX_MESSAGE * 2])
    return cleaned if len(cleaned) <= MAX_MESSAGE else cleaned[: MAX_MESSAGE - 1] + "…"
