"""Reads the credential of a request from `Authorization: Bearer` or `X-API-Key`. Pure; it does not verify anything.

Error messages never repeat what was sent, because they are logged.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_LENGTH = 8192
"""Longest credential in bytes; a longer one is refused before it is parsed or hashed."""

_BEARER = re.compile(rb"[ \t]*bearer[ \t]+([^ \t]+)[ \t]*", re.IGNORECASE)
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_COMPACT = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Credential(NamedTuple):
    """What a caller presents."""

    token: bytes
    bearer: bool
    """Whether it came as `Authorization: Bearer`. Only such a credential can be a JSON Web Token."""

    @property
    def may_be_jwt(self) -> bool:
        """Whether it has the form of a JSON Web Token: three base64url parts with dots between them."""
        return self.bearer and _COMPACT.fullmatch(self.token) is not None

    def __repr__(self) -> str:
        return f"<Credential of {len(self.token)} bytes>"


class MalformedCredential(Exception):
    """The header is not a usable credential. The message says why and repeats nothing of it."""


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> Credential | None:
    """The credential of a request; None if it has none. Header names are lower case. Raises MalformedCredential."""
    found = [(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
    if not found:
        return None
    if len(found) > 1:
        # A proxy and the gateway might each check a different one, so neither is trusted.
        raise MalformedCredential("send one credential: one Authorization or one X-API-Key header")
    name, value = found[0]
    if len(value) > MAX_LENGTH:
        raise MalformedCredential(f"a credential is at most {MAX_LENGTH} bytes long")
    if name == b"x-api-key":
        return Credential(_token(value.strip(b" \t"), "X-API-Key must contain the key and nothing else"), bearer=False)
    match = _BEARER.fullmatch(value)
    if match is None:
        raise MalformedCredential("Authorization must be 'Bearer' followed by the key or token")
    return Credential(_token(match[1], "the value after 'Bearer' is not a key or token"), bearer=True)


def _token(text: bytes, complaint: str) -> bytes:
    if _TOKEN.fullmatch(text) is None:
        raise MalformedCredential(complaint)
    return text
