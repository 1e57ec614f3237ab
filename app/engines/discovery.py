"""Gateways behind this gateway: their engines join the living set and are asked directly (registry key `discover`).

Engines room. It decides who joins and leaves when a listing is read, and who is asked meanwhile: nobody twice, and an
engine directly only once it has been reached directly. It refuses to know what is asked.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from app.engines.engine import RemoteEngine
from app.engines.remote_catalog import NOTHING_LISTED, RemoteCatalog, listing_of, read_catalog
from app.engines.residual_engine import ResidualEngine
from app.protocol.errors import LegError
from app.settings.schema import EngineEntry

TAKEN = "its id is that of another engine"
NOT_ALL = "not all engines of its gateway can join, and that gateway cannot be asked for the others alone"


class Move(NamedTuple):
    """What happened to one engine that a gateway lists."""

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
    """Which engines joined through which gateway of the set."""

    __slots__ = ("_engines", "_listings", "_moved")

    def __init__(self, engines: LiveEngines, moved: Callable[[Move], None]) -> None:
        self._engines = engines
        self._listings: dict[str, RemoteCatalog] = {}
        self._moved = moved

    async def follow(self, gateway: RemoteEngine) -> bool:
        """Read what `gateway` lists, and let engines join and leave; whether anything is different now.

        A listing that cannot be read changes nothing.
        """
        deadline = asyncio.get_running_loop().time() + gateway.entry.timeout_ms / 1000
        try:
            listed = await read_catalog(gateway, deadline)
        except LegError:
            return False
        return self._take(gateway, self._usable(gateway, listing_of(gateway.entry, listed)))

    def forget(self, gateway_id: str) -> None:
        """The gateway leaves: so do its engines."""
        listing = self._listings.pop(gateway_id, NOTHING_LISTED)
        for entry in listing.joining.values():
            self._part(gateway_id, entry.id)

    def make_room(self, leaving: Container[str], wanted: Container[str], closed: Container[str] = ()) -> None:
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
        """Whom requests are asked of, in the order of the set."""
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
        """Gateway -> its engines that are asked directly; without gateways that are asked for all they have."""
        known = {engine.id: engine for engine in self._engines.engines}
        groups: dict[str, tuple[str, ...]] = {}
        for gateway_id, listing in self._listings.items():
            ready = tuple(entry.id for entry in listing.joining.values() if known[entry.id].advertisement is not None)
            if ready and (_can_be_narrowed(known[gateway_id]) or not self._rest(gateway_id, ready)):
                groups[gateway_id] = ready
        return groups

    def _rest(self, gateway_id: str, direct: Iterable[str]) -> list[str]:
        """What a gateway must still be asked for."""
        joining = self._listings[gateway_id].joining
        found = set(direct)
        return [
            engine_id
            for engine_id in self._listings[gateway_id].ids
            if engine_id not in joining or joining[engine_id].id not in found
        ]

    def _usable(self, gateway: RemoteEngine, listing: RemoteCatalog) -> RemoteCatalog:
        """`listing` without what cannot join for our own reasons."""
        own = {entry.id for entry in self._listings.get(gateway.id, NOTHING_LISTED).joining.values()}
        taken = {engine.id for engine in self._engines.engines if engine.id not in own} | {*self._engines.disabled}
        reasons = {engine_id: TAKEN for engine_id, entry in listing.joining.items() if entry.id in taken}
        listing = _without(listing, reasons)
        if len(listing.joining) < len(listing.ids) and not _can_be_narrowed(gateway):
            listing = _without(listing, dict.fromkeys(listing.joining, NOT_ALL))
        return listing

    def _take(self, gateway: RemoteEngine, listing: RemoteCatalog) -> bool:
        before = self._listings.get(gateway.id, NOTHING_LISTED)
        if listing == before:
            return False
        self._listings[gateway.id] = listing
        for engine_id, entry in before.joining.items():
            if engine_id not in listing.joining:
                self._part(gateway.id, entry.id)
        for engine_id, entry in listing.joining.items():
            if before.joining.get(engine_id) != entry:
                self._engines.join(entry)
                if engine_id not in before.joining:
                    self._moved(Move("joined", gateway.id, entry.id))
        for engine_id, reason in listing.refused.items():
            if before.refused.get(engine_id) != reason:
                self._moved(Move("refused", gateway.id, engine_id, reason))
        return True

    def _part(self, gateway_id: str, engine_id: str) -> None:
        self._engines.leave(engine_id)
        self._moved(Move("left", gateway_id, engine_id))

    def __repr__(self) -> str:
        parts = [f"{gateway}: {len(found.joining)}/{len(found.ids)}" for gateway, found in self._listings.items()]
        return f"<Discovery {', '.join(parts) or 'of nobody'}>"


def _can_be_narrowed(gateway: RemoteEngine) -> bool:
    """Whether it is of our kind, which can be asked for some of its engines alone."""
    return gateway.advertisement is not None and gateway.advertisement.gateway_id is not None


def _without(listing: RemoteCatalog, reasons: Mapping[str, str]) -> RemoteCatalog:
    joining = {engine_id: entry for engine_id, entry in listing.joining.items() if engine_id not in reasons}
    return RemoteCatalog(listing.ids, joining, {**listing.refused, **reasons})
