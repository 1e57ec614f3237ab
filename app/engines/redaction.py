"""Removes an engine's secrets (header values, URL queries, program arguments) from errors, notes and advertisements."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote_plus

from app.protocol.errors import LegError
from app.settings.schema import EngineEntry

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

    __slots__ = ("_certain", "_words")

    def __init__(self, entry: EngineEntry) -> None:
        values = {word for value in entry.headers.values() for word in (value, *value.split())}
        for url in entry.urls:
            values.update(_query_values(url))
        values.update(_argument_values(entry.command or ()))
        self._words = _longest_first(values)
        certain = {word for name, value in entry.headers.items() if _is_secret(name, value) for word in value.split()}
        for url in entry.urls:
            certain.update(_query_values(url, secrets_only=True))
        self._certain = _longest_first((certain | set(_argument_values(entry.command or ()))) - _SCHEMES)

    def mask_error(self, fault: LegError) -> LegError:
        """The same fault without them: an engine, or what stands before it, may quote the request."""
        if any(word in fault.message for word in self._words):
            fault.reword(self.mask(fault.message))
        if fault.culprit is not None:
            fault.culprit = {key: self.mask(name) for key, name in fault.culprit.items()}
        return fault

    def clean_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result whose notes hold none of them. Hits and other data of an engine stay as they are."""
        usage = result.get("usage")
        if not self._words or type(usage) is not dict or type(usage.get("notes")) is not list:
            return result
        notes = [self.mask(note) if type(note) is str else note for note in usage["notes"]]
        return {**result, "usage": {**usage, "notes": notes}}

    def clean_advertisement(self, described: Any, levels: int = MAX_LEVELS) -> Any:
        """What an engine advertises without what is certainly secret: a name that a plain header holds as well, such as
        that of an index, must keep its meaning."""
        if not self._certain:
            return described
        if type(described) is str:
            return _replaced(described, self._certain)
        if not levels:
            return None
        if type(described) is dict:
            return {
                _replaced(name, self._certain): self.clean_advertisement(value, levels - 1)
                for name, value in described.items()
            }
        if type(described) is list:
            return [self.clean_advertisement(value, levels - 1) for value in described]
        return described

    def mask(self, text: str) -> str:
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


def _query_values(url: str, *, secrets_only: bool = False) -> Iterator[str]:
    """The values of a URL's query, as they are written and as they are read."""
    for pair in url.partition("#")[0].partition("?")[2].split("&"):
        name, named, value = pair.partition("=")
        if secrets_only and not _is_secret(name if named else "", value if named else name):
            continue
        yield from (value if named else name, unquote_plus(value if named else name))


def _argument_values(command: Sequence[str]) -> Iterator[str]:
    """Of a program's arguments what follows a flag called like a secret, looks like one, or is a secret of a URL."""
    before = ""
    for argument in command[1:]:
        flag, _, value = argument.partition("=") if argument.startswith("-") else (before, "", argument)
        if _SECRET_FLAG.fullmatch(flag) or _TOKEN.fullmatch(value):
            yield value
        if "://" in value:
            yield from (word for user in _USER.findall(value) for word in (user, user.partition(":")[2]))
            yield from _query_values(value)
        before = argument
