"""Why Redis does not serve the shared state, in words that name the cause and the remedy.

Only loaded with Redis' library. Nothing here shows the user or the password of a URL.
"""

import socket
import ssl
from collections.abc import Iterator

from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

_REPLIES = (
    ("WRONGPASS", "wrong user or password in state.url"),
    ("invalid password", "wrong user or password in state.url"),
    ("invalid username-password", "wrong user or password in state.url"),
    ("NOAUTH", "Redis asks for a password, and state.url has none"),
    ("Authentication required", "Redis asks for a password, and state.url has none"),
    ("without any password configured", "state.url has a password, and Redis has none"),
    ("MOVED", "this is a node of a Redis Cluster, which is not supported"),
    ("CLUSTERDOWN", "this is a node of a Redis Cluster, which is not supported"),
    ("Hash slot not served", "this is a node of a Redis Cluster, which is not supported"),
    ("CROSSSLOT", "this is a node of a Redis Cluster, which is not supported"),
    ("cluster mode", "this is a node of a Redis Cluster, which is not supported"),
    ("DB index is out of range", "Redis has no database of the number in state.url"),
    ("invalid DB index", "Redis has no database of the number in state.url"),
    ("read only replica", "this Redis is a read-only replica; name the primary"),
    ("READONLY", "this Redis is a read-only replica; name the primary"),
    ("OOM", "Redis is out of memory: raise maxmemory or let it evict"),
    ("MISCONF", "Redis refuses writes because it cannot save to disk"),
    ("LOADING", "Redis is still loading its data"),
    ("loading the dataset", "Redis is still loading its data"),
)
"""Beginnings or parts of what Redis or its library says, and the cause of each."""


def cause_of(fault: BaseException) -> str:
    """The cause of a failed question to Redis."""
    chain = list(_chain(fault))
    text = str(fault)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {(cause.reason or 'broken off').lower().replace('_', ' ')}"
        if isinstance(cause, socket.gaierror):
            return f"the name in state.url is not found: {cause.strerror}"
    for part, meaning in _REPLIES:
        if part in text:
            return f"{meaning} ({_clipped(text)})"
    if "unknown command" in text.lower():
        return f"this is a Redis Sentinel, or no full Redis; name the primary itself ({_clipped(text)})"
    if "NOPERM" in text or "no permissions" in text:
        return f"the user of state.url lacks a right ({_clipped(text)})"
    if any(isinstance(cause, ConnectionRefusedError) for cause in chain) or "Connect call failed" in text:
        return "connection refused"
    if isinstance(fault, TimeoutError | RedisTimeoutError):
        return "no answer in time"
    return f"{type(fault).__name__}: {_clipped(text)}"


def is_refusal(fault: BaseException) -> bool:
    """Whether Redis was reached and said no, though its library calls that a broken connection."""
    return isinstance(fault, AuthenticationError | AuthorizationError)


def url_fault(fault: Exception) -> str:
    """What is wrong with a URL that the library cannot use."""
    if isinstance(fault, TypeError):
        return "has a parameter after ? that is not known"
    if isinstance(fault, ValueError | RedisError):
        return f"has a bad parameter: {_clipped(str(fault))}"
    return "cannot be used"


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def _clipped(text: str) -> str:
    return text[:200]
