"""What a gateway lists of its own engines (RCP §7.13), and which of them may be asked directly (RCP §16.1).

Engines room. A listing is foreign: it may name addresses, of which those on hosts that our registry allows are used,
and it never says how: that comes from the gateway's own entry. It refuses to know sockets, and to open anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.engines.engine import RemoteEngine
from app.engines.http.endpoint import Endpoint
from app.protocol.errors import ProtocolViolation
from app.settings.schema import EngineEntry

MAX_LISTED = 256
"""Engines of one listing that are looked at."""

MAX_PAGES = 64

OWN = ("id", "url", "command", "transport", "client", "headers", "tls", "discover", "discover_hosts")
"""Of a gateway's entry, what its engines do not take over as it is."""


class RemoteCatalog(NamedTuple):
    """The engines of one gateway, by the ids it gives them."""

    ids: tuple[str, ...]
    joining: Mapping[str, EngineEntry]
    """Those that can be asked directly, as entries of our own registry."""
    refused: Mapping[str, str]
    """Those that have an endpoint which is not followed, and why."""


NOTHING_LISTED = RemoteCatalog((), {}, {})


async def read_catalog(gateway: RemoteEngine, deadline: float) -> list[Any]:
    """Every page of its `catalog/list`, until a cursor comes again. Raises LegError."""
    listed: list[Any] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    while True:
        result = (await gateway.call("catalog/list", params, deadline)).result
        page = result.get("engines")
        if type(page) is not list:
            raise ProtocolViolation("the catalog/list result has no 'engines' array")
        listed += page
        cursor = result.get("nextCursor")
        if type(cursor) is not str or cursor in seen or len(seen) >= MAX_PAGES or len(listed) >= MAX_LISTED:
            return listed[:MAX_LISTED]
        seen.add(cursor)
        params = {"cursor": cursor}


def listing_of(gateway: EngineEntry, listed: Sequence[Any]) -> RemoteCatalog:
    """What `gateway` lists; what is malformed in it does not count, and of an id that comes twice the first does."""
    ids: list[str] = []
    joining: dict[str, EngineEntry] = {}
    refused: dict[str, str] = {}
    for entry in listed:
        engine_id = entry.get("id") if type(entry) is dict else None
        if type(engine_id) is not str or engine_id in ids:
            continue
        ids.append(engine_id)
        url = _endpoint_of(entry)
        if url is None:
            continue
        try:
            joining[engine_id] = _joining(gateway, engine_id, url)
        except ValueError as fault:
            refused[engine_id] = _reason(fault)
    return RemoteCatalog(tuple(ids), joining, refused)


def _endpoint_of(entry: Mapping[str, Any]) -> str | None:
    """Where it can be asked by itself, unless the gateway itself only discovered it: that would never end."""
    endpoint = entry.get("endpoint")
    ours = entry.get("x-gateway")
    if type(endpoint) is not dict or (type(ours) is dict and ours.get("discovered") is True):
        return None
    url = endpoint.get("url")
    return url if endpoint.get("transport") in (None, "http") and type(url) is str else None


def _joining(gateway: EngineEntry, engine_id: str, url: str) -> EngineEntry:
    """The entry of one of its engines: its own id and URL, the gateway's wishes. Raises ValueError.

    The gateway's headers and TLS go to its own origin (scheme, host and port) and to no other.
    """
    if any(step in ("", ".", "..") for step in engine_id.split("/")):
        raise ValueError("its id is none that a path can hold")
    wishes = gateway.model_dump(exclude=set(OWN))
    entry = EngineEntry.model_validate({**wishes, "id": f"{gateway.id}/{engine_id}", "url": url})
    at = Endpoint.of(url)
    home = Endpoint.of(gateway.url or "") if gateway.url else None
    allowed = {*gateway.discover_hosts, *([home.host] if home else [])}
    if not {at.host, at.label} & allowed:
        raise ValueError(f"host '{at.host[:128]}' is neither the gateway's own nor in discoverHosts")
    if home is None or home.origin != at.origin:
        return entry
    return entry.model_copy(update={"headers": gateway.headers, "tls": gateway.tls})


def _reason(fault: ValueError) -> str:
    """Why it does not join, without the listing's own words."""
    return str(fault) if type(fault) is ValueError else "its id or its URL is none"
