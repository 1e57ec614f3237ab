"""The credential in a request's headers, if there is one: exactly one, in a form that a credential can have.

Pure. It decides which headers carry one (`Authorization: Bearer`, `X-API-Key`), and that everything odd is none. It
refuses to know whether one is right, and nothing it raises repeats what was sent.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_LENGTH = 8192
"""Bytes of a credential; nothing longer is looked at."""

_BEARER = re.compile(rb"[ \t]*bearer[ \t]+([^ \t]+)[ \t]*", re.IGNORECASE)
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_COMPACT = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Credential(NamedTuple):
    """What a caller presents."""

    token: bytes
    bearer: bool
    """Whether it came as `Authorization: Bearer`; only there a JSON Web Token is looked for."""

    @property
    def may_be_jwt(self) -> bool:
        """Whether it has a JSON Web Token's form."""
        return self.bearer and _COMPACT.fullmatch(self.token) is not None

    def __repr__(self) -> str:
        return f"<Credential of {len(self.token)} bytes>"


class MalformedCredential(Exception):
    """What was sent is no credential; the text says why without repeating any of it."""


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> Credential | None:
    """The credential of a request, None if there is none. `headers` with lower-case names. Raises Unreadable."""
    found = [(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
    if not found:
        return None
    if len(found) > 1:
        raise MalformedCredential("send one credential: one Authorization or one X-API-Key header")
    name, value = found[0]
    if len(value) > MAX_LENGTH:
        raise MalformedCredential(f"a credential is at most {MAX_LENGTH} bytes long")
    if name == b"x-api-key":
        return Credential(_token(value.strip(b" \t"), "X-API-Key holds the key alone"), bearer=False)
    match = _BEARER.fullmatch(value)
    if match is None:
        raise MalformedCredential("Authorization must be 'Bearer' and the key or token")
    return Credential(_token(match[1], "what follows 'Bearer' is no key or token"), bearer=True)


def _token(text: bytes, complaint: str) -> bytes:
    if _TOKEN.fullmatch(text) is None:
        raise MalformedCredential(complaint)
    return text
