"""The engines that an RCP session began with (RCP §13.2): what was advertised then holds until the session ends.

A session refers to a set of offers by its digest. Sessions that began with the same engines share one set, also across
processes. A call to an engine that has left the registry fails.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple

from app.engines.in_flight_call import InFlightCall
from app.federation.capabilities import EngineOffer
from app.federation.engine_interface import Engine
from app.protocol.advertisement import Advertisement, read_advertisement
from app.protocol.envelope import dumps, writable
from app.protocol.errors import CapabilityMissing, Departed, LegError, OptionUnsupported, UnknownMethod
from app.protocol.method_names import PROTOCOL_VERSION
from app.settings.schema import EngineEntry
from app.state.store import Store

MAX_ENGINES = 1000
"""Engines of one set; of those that have left, the oldest are dropped first."""

_WITHDRAWN = frozenset({CapabilityMissing.code, UnknownMethod.code, OptionUnsupported.code})
"""Codes with which an engine says that it does not offer what it is asked for."""


class SessionEngines(NamedTuple):
    """What every engine offered when the session began."""

    digest: str
    offers: tuple[EngineOffer, ...]

    def advertisement(self, engine_id: str) -> Advertisement | None:
        """What this engine offered."""
        return next((offer.advertisement for offer in self.offers if offer.id == engine_id), None)


class SessionEngine:
    """One engine with the advertisement from the start of the session. Implements `Engine`."""

    __slots__ = ("_live", "advertisement", "entry", "id")

    def __init__(self, offer: EngineOffer, live: Engine | None) -> None:
        """`live`: the engine as it is now; None if it has left."""
        self.id = offer.id
        self.advertisement = offer.advertisement
        self._live = live
        self.entry = _entry_of(offer) if live is None else live.entry

    @property
    def down_reason(self) -> str | None:
        """Always None: the engine had been reached before the session began."""
        return None

    @property
    def breaker_open(self) -> bool:
        """Whether the circuit breaker of the engine holds calls back."""
        return self._live is not None and self._live.breaker_open

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """Call the engine. It ends with Departed if the engine does not offer any more what it did.

        Raises Departed at once if the engine has left.
        """
        if self._live is None:
            fault = Departed("the engine has left since this session began")
            fault.attempts = 0
            raise fault
        call = self._live.call(method, params, deadline, idempotent=idempotent)
        call.translate = _departed_if_withdrawn
        return call

    def __repr__(self) -> str:
        return f"<SessionEngine {self.id}{' (left)' if self._live is None else ''}>"


def _departed_if_withdrawn(error: LegError) -> LegError:
    if error.code not in _WITHDRAWN:
        return error
    withdrawn = Departed(f"it does not offer this any more: {error.message}")
    withdrawn.attempts = error.attempts
    return withdrawn


class SessionSets:
    """The sets of offers that sessions refer to. A set lives as long as a session uses it."""

    __slots__ = ("_due", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float) -> None:
        """A session ends `seconds` after it was last used."""
        self._store = store
        self._seconds = seconds
        self._due: dict[str, float] = {}
        """Digest -> when the set must be renewed (monotonic seconds)."""

    async def keep(self, offers: Iterable[EngineOffer]) -> SessionEngines:
        """Save the set of these offers."""
        listed = tuple(offers)
        engines = SessionEngines(_digest_of(listed), listed)
        await self._renew(engines)
        return engines

    async def find(self, digest: str) -> SessionEngines | None:
        """The set with this digest; None if it was evicted."""
        found: SessionEngines | None = await self._store.get(digest, _load)
        if found is not None and self._due.get(digest, 0.0) <= monotonic():
            await self._renew(found)
        return found

    async def _renew(self, engines: SessionEngines) -> None:
        # Saved for twice the lifetime of a session and renewed after half of it: a live session finds its set.
        await self._store.put(engines.digest, engines, 2 * self._seconds, _dump, size=1 + len(engines.offers))
        # Forgetting them costs one early renewal each.
        if len(self._due) >= MAX_ENGINES:
            self._due.clear()
        self._due[engines.digest] = monotonic() + self._seconds / 2

    def __repr__(self) -> str:
        return f"<SessionSets in {self._store!r}>"


def with_departed(now: Sequence[EngineOffer], before: Sequence[EngineOffer]) -> list[EngineOffer]:
    """The current offers, followed by those of `before` whose engines have left."""
    here = {offer.id for offer in now}
    return [*now, *(offer for offer in before if offer.id not in here)][:MAX_ENGINES]


def engines_of(session: SessionEngines, live: Iterable[Engine]) -> tuple[Engine, ...]:
    """The engines of a session, by priority (highest first), then by id."""
    here = {engine.id: engine for engine in live}
    engines: list[Engine] = []
    for offer in session.offers:
        engine = here.get(offer.id)
        # The live engine itself if nothing changed: it needs no checks.
        same = engine is not None and _same(engine.advertisement, offer.advertisement)
        engines.append(engine if engine is not None and same else SessionEngine(offer, engine))
    return tuple(sorted(engines, key=lambda engine: (-engine.entry.priority, engine.id)))


def _same(one: Advertisement | None, other: Advertisement | None) -> bool:
    try:
        return one is other or one == other
    except RecursionError:  # the advertisement is nested too deeply to be compared
        return False


def _entry_of(offer: EngineOffer) -> EngineEntry:
    """The registry entry of an engine that has left. Never `required`, or its failure would fail every request."""
    return EngineEntry(id=offer.id, url="http://departed.invalid/rcp", priority=offer.priority, writer=offer.writer)


def _digest_of(offers: Sequence[EngineOffer]) -> str:
    return blake2b(dumps([_plain(offer) for offer in offers]), digest_size=16).hexdigest()


def _plain(offer: EngineOffer) -> list[Any]:
    advertisement = offer.advertisement
    assert advertisement is not None, "only engines that have been reached are part of a session"
    gateway = {} if advertisement.gateway_id is None else {"x-gateway": {"id": advertisement.gateway_id}}
    claim = {} if advertisement.conformance is None else {"conformance": advertisement.conformance}
    described = {
        "protocolVersion": PROTOCOL_VERSION,
        "server": dict(advertisement.server),
        "capabilities": writable(dict(advertisement.capabilities)),
        "_meta": {**gateway, **claim},
    }
    return [offer.id, offer.priority, offer.writer, described]


def _dump(engines: SessionEngines) -> list[Any]:
    return [engines.digest, [_plain(offer) for offer in engines.offers]]


def _load(plain: list[Any]) -> SessionEngines:
    digest, listed = plain
    offers = [
        EngineOffer(engine_id, priority, read_advertisement(described), writer)
        for engine_id, priority, writer, described in listed
    ]
    return SessionEngines(digest, tuple(offers))
