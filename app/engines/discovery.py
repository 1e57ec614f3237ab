"""Discovery: engines listed by a downstream gateway join the engine set and are called directly (key `discover`).

A listing is untrusted: it may name URLs, of which only those on allowed hosts are used (RCP §7.13, §16.1). An engine is
called directly only once it has been reached directly; until then, and for all others, the gateway is called.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from app.engines.engine import RemoteEngine
from app.engines.http.endpoint import Endpoint
from app.engines.in_flight_call import InFlightCall
from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError, ProtocolViolation
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
    """Those that can be called directly, as registry entries."""
    refused: Mapping[str, str]
    """Those whose endpoint must not be used, and why."""


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
        # A listing is untrusted: it may repeat cursors or never end.
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
        # Of two entries with the same id, the first one counts.
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
    """Where an engine can be called directly. None if the gateway itself only discovered it: that would never end."""
    endpoint = entry.get("endpoint")
    ours = entry.get("x-gateway")
    if type(endpoint) is not dict or (type(ours) is dict and ours.get("discovered") is True):
        return None
    url = endpoint.get("url")
    return url if endpoint.get("transport") in (None, "http") and type(url) is str else None


def _joining(gateway: EngineEntry, engine_id: str, url: str) -> EngineEntry:
    """The entry of a listed engine: its own id and URL, all else as the gateway's entry. Raises ValueError.

    The gateway's headers and TLS go to its own origin (scheme, host and port) and to no other.
    """
    # The id becomes part of the endpoint `/engines/<id>`.
    if any(step in ("", ".", "..") for step in engine_id.split("/")):
        raise ValueError("its id cannot be part of a URL path")
    inherited = gateway.model_dump(exclude=set(OWN))
    entry = EngineEntry.model_validate({**inherited, "id": f"{gateway.id}/{engine_id}", "url": url})
    at = Endpoint.of(url)
    home = Endpoint.of(gateway.url or "") if gateway.url else None
    allowed = {*gateway.discover_hosts, *([home.host] if home else [])}
    # Otherwise a listing could make this gateway send requests to any host (SSRF).
    if not {at.host, at.label} & allowed:
        raise ValueError(f"host '{at.host[:128]}' is neither the gateway's own nor in discoverHosts")
    # Credentials of the gateway's entry must not reach another origin.
    if home is None or home.origin != at.origin:
        return entry
    return entry.model_copy(update={"headers": gateway.headers, "tls": gateway.tls})


def _reason(fault: ValueError) -> str:
    """Why an engine does not join, without quoting the listing."""
    return str(fault) if type(fault) is ValueError else "its id or URL is invalid"


GATEWAY_PARAMS = "x-gateway"
"""Key of the params that restrict a gateway of this kind to some of its engines."""


class ResidualEngine:
    """A gateway restricted to its engines that are not called directly: they would count twice."""

    __slots__ = ("_gateway", "_only", "entry", "id")

    def __init__(self, gateway: RemoteEngine, only: Sequence[str]) -> None:
        """`only`: the engines to call, by the ids that the gateway gives them."""
        self.id = gateway.id
        self.entry: EngineEntry = gateway.entry
        self._gateway = gateway
        self._only = list(only)

    @property
    def advertisement(self) -> Advertisement | None:
        """The whole gateway's."""
        return self._gateway.advertisement

    @property
    def down_reason(self) -> str | None:
        """The whole gateway's."""
        return self._gateway.down_reason

    @property
    def breaker_open(self) -> bool:
        """The whole gateway's."""
        return self._gateway.breaker_open

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """As RemoteEngine.call, restricted to the remaining engines."""
        return self._gateway.call(method, self._narrowed(params), deadline, idempotent=idempotent)

    def _narrowed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        given = params.get(GATEWAY_PARAMS)
        return {**params, GATEWAY_PARAMS: {**(given if type(given) is dict else {}), "engines": self._only}}

    def __repr__(self) -> str:
        return f"<ResidualEngine {', '.join(self._only)} of {self._gateway!r}>"


TAKEN = "another engine has the same id"
NOT_ALL = "not all engines of its gateway can be called directly, and the gateway cannot be restricted to the others"


class Move(NamedTuple):
    """A change of one engine that a gateway lists, for the log."""

    kind: Literal["joined", "left", "refused"]
    gateway: str
    engine: str
    reason: str | None = None


class LiveEngines(Protocol):
    """The set that engines join."""

    @property
    def engines(self) -> Sequence[RemoteEngine]: ...

    @property
    def disabled(self) -> Sequence[str]: ...

    def join(self, entry: EngineEntry) -> None: ...

    def leave(self, engine_id: str) -> None: ...


class Discovery:
    """The engines that were discovered through each gateway of the set."""

    __slots__ = ("_engines", "_listings", "_moved")

    def __init__(self, engines: LiveEngines, moved: Callable[[Move], None]) -> None:
        self._engines = engines
        self._listings: dict[str, RemoteCatalog] = {}
        self._moved = moved

    async def follow(self, gateway: RemoteEngine) -> bool:
        """Read what `gateway` lists, and let engines join and leave; whether anything is different now.

        A listing that cannot be read changes nothing.
        """
        # A listing is read after a check, and may take as long as a call.
        deadline = asyncio.get_running_loop().time() + gateway.entry.timeout_ms / 1000
        try:
            listed = await read_catalog(gateway, deadline)
        except LegError:
            return False
        return self._apply(gateway, self._usable(gateway, listing_of(gateway.entry, listed)))

    def forget(self, gateway_id: str) -> None:
        """The gateway leaves: so do its engines."""
        listing = self._listings.pop(gateway_id, NOTHING_LISTED)
        for entry in listing.joining.values():
            self._leave(gateway_id, entry.id)

    def prepare(self, leaving: Container[str], wanted: Container[str], closed: Container[str] = ()) -> None:
        """The registry changes: gateways in `leaving` go, those in `closed` are followed no more, and those with an
        engine of an id that is `wanted` read their listing anew."""
        for gateway_id, listing in list(self._listings.items()):
            if (
                gateway_id in leaving
                or gateway_id in closed
                or any(entry.id in wanted for entry in listing.joining.values())
            ):
                self.forget(gateway_id)

    def asked(self) -> tuple[RemoteEngine | ResidualEngine, ...]:
        """The engines that requests are sent to, in the order of the set."""
        direct = self.groups()
        by_gateway = {engine_id for children in direct.values() for engine_id in children}
        joined = {entry.id for listing in self._listings.values() for entry in listing.joining.values()}
        asked: list[RemoteEngine | ResidualEngine] = []
        for engine in self._engines.engines:
            if engine.id in direct:
                rest = self._rest(engine.id, direct[engine.id])
                if rest:
                    asked.append(ResidualEngine(engine, rest))
            elif engine.id not in joined or engine.id in by_gateway:
                asked.append(engine)
        return tuple(asked)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Gateway -> its engines that are called directly; without gateways that are called for all their engines."""
        known = {engine.id: engine for engine in self._engines.engines}
        groups: dict[str, tuple[str, ...]] = {}
        for gateway_id, listing in self._listings.items():
            ready = tuple(entry.id for entry in listing.joining.values() if known[entry.id].advertisement is not None)
            # A gateway that cannot be restricted would answer for these engines a second time.
            if ready and (_can_be_narrowed(known[gateway_id]) or not self._rest(gateway_id, ready)):
                groups[gateway_id] = ready
        return groups

    def _rest(self, gateway_id: str, direct: Iterable[str]) -> list[str]:
        """The engines that a gateway must still be called for."""
        joining = self._listings[gateway_id].joining
        found = set(direct)
        return [
            engine_id
            for engine_id in self._listings[gateway_id].ids
            if engine_id not in joining or joining[engine_id].id not in found
        ]

    def _usable(self, gateway: RemoteEngine, listing: RemoteCatalog) -> RemoteCatalog:
        """`listing` without the engines that cannot join this set."""
        # Ids of the registry and of other gateways take precedence over those of this listing.
        own = {entry.id for entry in self._listings.get(gateway.id, NOTHING_LISTED).joining.values()}
        taken = {engine.id for engine in self._engines.engines if engine.id not in own} | {*self._engines.disabled}
        reasons = {engine_id: TAKEN for engine_id, entry in listing.joining.items() if entry.id in taken}
        listing = _without(listing, reasons)
        # All or none: a gateway of another kind cannot be called for the rest only.
        if len(listing.joining) < len(listing.ids) and not _can_be_narrowed(gateway):
            listing = _without(listing, dict.fromkeys(listing.joining, NOT_ALL))
        return listing

    def _apply(self, gateway: RemoteEngine, listing: RemoteCatalog) -> bool:
        before = self._listings.get(gateway.id, NOTHING_LISTED)
        if listing == before:
            return False
        self._listings[gateway.id] = listing
        for engine_id, entry in before.joining.items():
            if engine_id not in listing.joining:
                self._leave(gateway.id, entry.id)
        for engine_id, entry in listing.joining.items():
            if before.joining.get(engine_id) != entry:
                self._engines.join(entry)
                if engine_id not in before.joining:
                    self._moved(Move("joined", gateway.id, entry.id))
        for engine_id, reason in listing.refused.items():
            if before.refused.get(engine_id) != reason:
                self._moved(Move("refused", gateway.id, engine_id, reason))
        return True

    def _leave(self, gateway_id: str, engine_id: str) -> None:
        self._engines.leave(engine_id)
        self._moved(Move("left", gateway_id, engine_id))

    def __repr__(self) -> str:
        parts = [f"{gateway}: {len(found.joining)}/{len(found.ids)}" for gateway, found in self._listings.items()]
        return f"<Discovery {', '.join(parts) or 'of nobody'}>"


def _can_be_narrowed(gateway: RemoteEngine) -> bool:
    """Whether a gateway is of this kind, which can be restricted to some of its engines."""
    return gateway.advertisement is not None and gateway.advertisement.gateway_id is not None


def _without(listing: RemoteCatalog, reasons: Mapping[str, str]) -> RemoteCatalog:
    joining = {engine_id: entry for engine_id, entry in listing.joining.items() if engine_id not in reasons}
    return RemoteCatalog(listing.ids, joining, {**listing.refused, **reasons})
