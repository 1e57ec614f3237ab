"""What a fault says: whether it is held against the engine, whether another attempt is worth it, and what may be told.

Engines room. One table for breaker, replicas, standing and retries; it refuses to know what is done about it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote_plus

from app.engines.transport import ConnectionLost
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
from app.settings.schema import EngineEntry

_SUSPECT_CODES = frozenset({InternalError.code, ParseError.code})
_SUSPECT_STATUS = 500
"""What programs answer whose code fell over: at this request, or at every one."""

_FAILING_CODES = frozenset({BackendUnavailable.code, DeadlineExceeded.code})
"""Codes with which an engine says that it, and not the request, is at fault. -32603 is a ProtocolViolation here."""

_PERMANENT_STATUSES = frozenset({401, 403, 404})
"""They tell of one request as little as of the engine's health, but of a wrong entry in the registry."""

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


def counts(fault: LegError) -> bool:
    """Whether it counts as a failure of the engine; what refuses one request, or is our own doing, does not."""
    if isinstance(fault, LegTimeout):
        return fault.attempts > 0
    if isinstance(fault, ConnectFailed | TlsFailed | ProtocolViolation):
        return True
    if isinstance(fault, BadStatus):
        return fault.status is None or fault.status >= 500
    if not isinstance(fault, Refused) or fault.code in _PARAMS_CODES:
        return False
    return fault.code in _FAILING_CODES or (fault.status or 0) >= 500


def marks_down(fault: LegError) -> bool:
    """Whether the engine counts as down until it does something right."""
    if isinstance(fault, BadStatus) and fault.status is not None and 300 <= fault.status < 500:
        return fault.status < 400 or fault.status in _PERMANENT_STATUSES
    return counts(fault) and not isinstance(fault, Refused) and fault.code not in _SUSPECT_CODES


def strays(fault: LegError) -> bool:
    """Whether another replica may well know better: it tells of the address that was asked, and not of the request."""
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
    if isinstance(fault, ConnectFailed):
        return True
    if not idempotent:
        return False
    if elsewhere and strays(fault):
        return True
    if isinstance(fault, BadStatus):
        return fault.status is not None and fault.status >= 500 and fault.status != 501
    if isinstance(fault, LegRateLimited):
        return fault.retry_after_ms is not None
    if isinstance(fault, Refused):
        return fault.code in _FAILING_CODES
    if isinstance(fault, ProtocolViolation):
        return isinstance(fault, ConnectionLost) or (fault.code == InternalError.code and not repeats)
    return isinstance(fault, LegTimeout)


_SECRET_FLAG = re.compile(r"-{1,2}[\w-]*(?:token|secret|key(?![a-z])|pass|pwd|auth|cred)[\w-]*", re.IGNORECASE)
_TOKEN = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[\w+=~-]{8,}")
"""What looks like a key among a program's arguments: long, of letters and digits, and no path."""

_SECRET_NAME = re.compile(r"token|secret|key(?![a-z])|pass|pwd|auth|cred|cookie|sig", re.IGNORECASE)
_SCHEMES = frozenset({"Basic", "Bearer", "basic", "bearer", "Digest", "Token", "token"})

_USER = re.compile(r"://([^/?#\s]+)@")


MAX_LEVELS = 100
"""Levels of nesting in what an engine advertises that are searched for secrets; what is deeper is left out."""


class Secrets:
    """What must not come back in a note or in the log: the values of an entry's headers and of its URLs' queries, and
    of its program's arguments those that look like secrets (all of them would make a riddle of what it says)."""

    __slots__ = ("_keen", "_words")

    def __init__(self, entry: EngineEntry) -> None:
        values = {word for value in entry.headers.values() for word in (value, *value.split())}
        for url in entry.urls:
            values.update(_queried(url))
        values.update(_argued(entry.command or ()))
        self._words = _longest_first(values)
        keen = {word for name, value in entry.headers.items() if _is_secret(name, value) for word in value.split()}
        for url in entry.urls:
            keen.update(_queried(url, secrets_only=True))
        self._keen = _longest_first((keen | set(_argued(entry.command or ()))) - _SCHEMES)

    def masked(self, fault: LegError) -> LegError:
        """The same fault without them: an engine, or what stands before it, may quote the request."""
        if any(word in fault.message for word in self._words):
            fault.reword(self.without(fault.message))
        if fault.culprit is not None:
            fault.culprit = {key: self.without(name) for key, name in fault.culprit.items()}
        return fault

    def cleaned(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result whose notes hold none of them. Hits and other data of an engine stay as they are."""
        usage = result.get("usage")
        if not self._words or type(usage) is not dict or type(usage.get("notes")) is not list:
            return result
        notes = [self.without(note) if type(note) is str else note for note in usage["notes"]]
        return {**result, "usage": {**usage, "notes": notes}}

    def purged(self, said: Any, levels: int = MAX_LEVELS) -> Any:
        """What an engine advertises without what is certainly secret: a name that a plain header holds as well, such as
        that of an index, must keep its meaning."""
        if not self._keen:
            return said
        if type(said) is str:
            return _replaced(said, self._keen)
        if not levels:
            return None
        if type(said) is dict:
            return {_replaced(name, self._keen): self.purged(value, levels - 1) for name, value in said.items()}
        if type(said) is list:
            return [self.purged(value, levels - 1) for value in said]
        return said

    def without(self, text: str) -> str:
        """The same text without them."""
        return _replaced(text, self._words)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._words)} words>"


def _replaced(text: str, words: Sequence[str]) -> str:
    for word in words:
        text = text.replace(word, "***")
    return text


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((word for word in words if len(word) >= 4), key=len, reverse=True))


def _is_secret(name: str, value: str) -> bool:
    """Whether a header or a part of a query is a secret, by its name or by its looks."""
    return _SECRET_NAME.search(name) is not None or any(map(_TOKEN.fullmatch, value.split()))


def _queried(url: str, *, secrets_only: bool = False) -> Iterator[str]:
    """The values of a URL's query, as they are written and as they are read."""
    for pair in url.partition("#")[0].partition("?")[2].split("&"):
        name, named, value = pair.partition("=")
        if secrets_only and not _is_secret(name if named else "", value if named else name):
            continue
        yield from (value if named else name, unquote_plus(value if named else name))


def _argued(command: Sequence[str]) -> Iterator[str]:
    """Of a program's arguments what follows a flag called like a secret, looks like one, or is a secret of a URL."""
    before = ""
    for argument in command[1:]:
        flag, _, value = argument.partition("=") if argument.startswith("-") else (before, "", argument)
        if _SECRET_FLAG.fullmatch(flag) or _TOKEN.fullmatch(value):
            yield value
        if "://" in value:
            yield from (word for user in _USER.findall(value) for word in (user, user.partition(":")[2]))
            yield from _queried(value)
        before = argument
