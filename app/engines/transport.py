"""What all transports to an engine have in common: the `Transport` protocol, and how a JSON-RPC response is read.

Only here does a response of an engine become a result or a LegError.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from app.protocol import envelope
from app.protocol.errors import (
    BadStatus,
    InternalError,
    LegError,
    LegRateLimited,
    ParseError,
    PayloadTooLarge,
    ProtocolViolation,
    RateLimited,
    Refused,
    ResponseTooLarge,
    clip,
)
from app.protocol.validators import whole

_MILLISECONDS = whole(0)


Content = bytes | bytearray
"""A whole, decoded body."""


class Reply(NamedTuple):
    """An engine's answer: the `result` object and how many requests it took to get it."""

    result: dict[str, Any]
    attempts: int = 1
    size: int = 0
    """Bytes of the response body."""
    free: int = 0
    """How many of the requests were made only because a handshake was due."""
    replica: str | None = None
    """The replica that answered, if the engine has several."""
    hedged: bool = False
    """Whether a second replica was called because the first was slow."""


def plain_reply(result: dict[str, Any], attempts: int, size: int) -> Reply:
    """A Reply without the optional fields. Bypasses the constructor, which costs several times as much."""
    return tuple.__new__(Reply, (result, attempts, size, 0, None, False))


class Exchange(Protocol):
    """A request that has been sent, and its answer; ended by exactly one `take` or `drop`."""

    def done(self) -> bool:
        """Whether `take` has an answer or an error to give."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        """Set the function to call, in any context, once it is done; not called after `drop`."""
        ...

    def take(self) -> Reply:
        """The answer. Raises LegError; ConnectionLost if the request may be sent again over a fresh connection."""
        ...

    def drop(self) -> None:
        """Stop waiting and release the connection."""
        ...


class ConnectionLost(ProtocolViolation):
    """The peer closed before the first byte of its answer. On a reused connection, the request may be sent again."""


class StrayAnswer(ProtocolViolation):
    """An answer to another request. On a reused connection it may be a late answer to the previous one."""


def is_of_before(fault: LegError) -> bool:
    """Whether an error on a reused connection is due to what happened on it before, so that a repetition is fair.

    The peer was gone, answered the previous request again, or had given up waiting for a request (HTTP 408).
    """
    return isinstance(fault, ConnectionLost | StrayAnswer) or (isinstance(fault, BadStatus) and fault.status == 408)


class Transport(Protocol):
    """One way to reach one engine.

    `call` can be cancelled at any moment and leaves nothing behind. The caller keeps the deadline, by cancelling.
    """

    async def call(self, method: str, params: Mapping[str, Any], *, idempotent: bool = True) -> Reply:
        """Send one request and wait for its answer. Raises LegError, never anything else but CancelledError."""
        ...

    def send(self, method: str, params: Mapping[str, Any]) -> Exchange | None:
        """Send an idempotent request at once, without a task; None if that would have to wait: then use `call`."""
        ...

    @property
    def stderr_tail(self) -> str | None:
        """The end of what its process wrote to stderr, for operators; None without a process. Untrusted text."""
        ...

    def renew(self) -> None:
        """Use no open connection for another call: the engine may have moved. Never waits."""
        ...

    def overdue(self) -> None:
        """A call or ping was not answered in time, and the deadline was not a short one. Never waits."""
        ...

    async def close(self) -> None:
        """Release everything; calls under way end with LegError. Raises nothing."""
        ...


def check_shape(method: str, result: Mapping[str, Any]) -> None:
    """Check that a result has the shape of its method. Raises ProtocolViolation.

    This is enough to notice a broken engine or replica; hit_validation.py checks the hits themselves.
    """
    if method == "retrieve" and type(result.get("hits")) is not list:
        raise ProtocolViolation("the retrieve result has no 'hits' array")


def read_reply(body: Content, call_id: int) -> dict[str, Any]:
    """The `result` in an engine's response (RCP §4.2, §4.3). Raises LegError.

    An id that came back as a string is accepted (our ids are unique integers, so this is safe).
    """
    if not body:
        raise ProtocolViolation("the engine sent an empty body")
    try:
        message = envelope.loads_answer(body)
    except ParseError as fault:
        raise ProtocolViolation(fault.message) from None
    except PayloadTooLarge as excess:
        raise ResponseTooLarge(excess.message) from None
    return result_of(message, call_id)


def result_of(message: Any, call_id: int) -> dict[str, Any]:
    """As read_reply, for a message that is parsed already."""
    if type(message) is not dict:
        raise ProtocolViolation("the engine's answer is no JSON object")
    answered = message.get("id")
    error = message.get("error")
    # `True == 1` in Python.
    ours = (answered == call_id and answered is not True) or answered == str(call_id)
    # An error about an unreadable request carries `id: null`.
    # Accepting another id would give one caller the answer to another caller's query.
    if not ours and not (error is not None and answered is None):
        raise StrayAnswer("the engine answered another request's id")
    if error is not None:
        raise call_error_of(error)
    result = message.get("result")
    if type(result) is not dict:
        raise ProtocolViolation("the engine's answer has neither a result object nor an error")
    return result


def call_error_of(error: Any) -> LegError:
    """A JSON-RPC error object of an engine as a LegError that keeps its code and message."""
    if type(error) is not dict or type(error.get("code")) is not int:
        return ProtocolViolation("the engine's error has no code")
    code: int = error["code"]
    message = error.get("message")
    data = error.get("data")
    text = f"{code} {message if type(message) is str else ''}".rstrip()
    retry_after = _MILLISECONDS(data.get("retryAfterMs")) if type(data) is dict else None
    if code == RateLimited.code:
        return LegRateLimited(text, code=code, retry_after_ms=retry_after)
    # The engine itself failed; every other code is a refusal of this request.
    if code in (InternalError.code, ParseError.code):
        return ProtocolViolation(text, code=code)
    refusal = Refused(text, code=code, retry_after_ms=retry_after)
    if type(data) is dict:
        named = {key: clip(data[key]) for key in ("field", "option") if type(data.get(key)) is str}
        refusal.culprit = named or None
    return refusal
