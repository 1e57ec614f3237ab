"""The `indexVersion` of the federation: a token that holds the version of each engine (RCP §7.7). Pure.

Callers treat it as opaque. It is not signed, so every token received is checked as untrusted input.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping

from app.protocol import envelope
from app.protocol.errors import InvalidParams, ParseError

PREFIX = "fed1."
"""Prefix of every token; anything else is an engine's own version."""

MAX_TOKEN = 65_536
"""Characters of a token; longer ones are neither made nor read."""


def token_of(versions: Mapping[str, str]) -> str | None:
    """The token for these versions by engine id, equal for equal versions; None if there are none, or too many for a
    token."""
    if not versions:
        return None
    # Sorted by id, so that equal versions give equal tokens.
    text = envelope.dumps({engine: versions[engine] for engine in sorted(versions)})
    token = PREFIX + urlsafe_b64encode(text).decode().rstrip("=")
    return token if len(token) <= MAX_TOKEN else None


def versions_in(index_version: str) -> dict[str, str] | None:
    """The versions by engine id that a token holds; None if it is an engine's own version.

    Raises InvalidParams (-32602) for a token that this gateway would not have made.
    """
    if not index_version.startswith(PREFIX):
        return None
    versions = None if len(index_version) > MAX_TOKEN else _read(index_version[len(PREFIX) :])
    # Made again and compared: a token with another encoding of the same versions is refused.
    if versions is None or token_of(versions) != index_version:
        raise InvalidParams(
            "'indexVersion' is not a snapshot of this gateway; send it exactly as received", field="indexVersion"
        )
    return versions


def _read(body: str) -> dict[str, str] | None:
    try:
        versions = envelope.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ParseError, NotBase64, ValueError):
        return None
    if type(versions) is not dict or not all(type(version) is str for version in versions.values()):
        return None
    return versions
