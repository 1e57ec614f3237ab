"""Ids for `fetch` that contain what is needed to find a hit again: engine, id and query.

Every process of every replica can resolve them, also after a restart, without shared state. They are not signed:
resolving one is a `retrieve` by the caller itself, so a forged id reaches nothing that the caller cannot retrieve.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol import envelope
from app.protocol.errors import ParseError

PREFIX: Final = "hit_"
"""Distinguishes these ids from those of engines."""

URI: Final = "rcp://hit/"
"""Begins the URI of a hit as an MCP resource; the id follows."""

MAX_ID: Final = 2048
"""Longest id that is accepted."""

MAX_QUERY_BYTES: Final = 900
"""Of the query that an id contains. With a hit id of usual length the whole id stays below `MAX_ID`."""

SCOPE: Final = frozenset({"mode", "filter"})
"""Params of `retrieve` besides the query that decide which hits an engine returns."""


class HitReference(NamedTuple):
    """Where a hit can be found again."""

    engine: str
    hit_id: str
    query: str
    scope: Mapping[str, Any]
    """The members of SCOPE that the request had."""

    @property
    def params(self) -> dict[str, Any]:
        """Params of the `retrieve` that finds it."""
        return {**self.scope, "query": self.query, "x-gateway": {"engines": [self.engine]}}


def encode(engine: str, hit_id: str, query: str, scope: Mapping[str, Any]) -> str:
    """The id of a hit; the engine's own id if this kind of id would be too long."""
    text = query.encode("utf-8", "replace")
    if len(text) > MAX_QUERY_BYTES:
        # Models read ids, so they must stay short. The beginning of a long query usually finds its hits, too.
        query = text[:MAX_QUERY_BYTES].decode("utf-8", "ignore")
    # Most requests have neither, and then the member is left out: ids are paid for by the character.
    kept = {name: scope[name] for name in SCOPE if name in scope}
    value = [engine, hit_id, query, kept] if kept else [engine, hit_id, query]
    written = PREFIX + urlsafe_b64encode(envelope.dumps(value)).rstrip(b"=").decode()
    return written if len(written) <= MAX_ID else hit_id


def decode(written: str) -> HitReference | None:
    """The reference that an id, or the URI of a resource, contains; None if it is of another kind."""
    written = written.removeprefix(URI)
    # The bound comes before decoding, since anybody can send an id.
    if not written.startswith(PREFIX) or len(written) > MAX_ID:
        return None
    digits = written[len(PREFIX) :]
    try:
        value = envelope.loads(urlsafe_b64decode(digits + "=" * (-len(digits) % 4)))
    except (ParseError, Base64Error, ValueError):
        return None
    if type(value) is not list or not 3 <= len(value) <= 4 or any(type(part) is not str for part in value[:3]):
        return None
    scope = value[3] if len(value) == 4 else {}
    # Nothing else may get into the params of a request: an id must not set its deadline, weights or session.
    if type(scope) is not dict or not SCOPE.issuperset(scope) or not all(value[:3]):
        return None
    return HitReference(value[0], value[1], value[2], scope)
