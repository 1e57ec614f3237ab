"""Cursors and sessions: what one answer leaves behind for the next.

A cursor names a Place: whose question it was, how far it was answered, and which Stock is served. A stock may be gone
before its places are; the engines are then asked again, and what was answered is left out. It refuses to know how a
stock comes about.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from json import JSONEncoder
from os import urandom
from time import monotonic
from typing import Any, NamedTuple

from app.federation.result_set import Page, ResultSet, dump_result_set, load_result_set, session_keys_of
from app.federation.sessions import HitOrigins, PoisonReports, RetrieveSessions, Trajectory
from app.federation.tenants import Tenant
from app.fusion.injection_screen import InjectionScreen
from app.protocol.content import comparable_query
from app.protocol.errors import InvalidParams, NotFound
from app.protocol.retrieve_params import RetrieveParams
from app.settings.screen import ScreenSettings
from app.settings.state import StateSettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store

PLACE = "place:"
RESULT_SET = "stock:"

KEYS_EACH = 100
"""Keys of hits that a cursor or a session holds on average if their store is full; then the oldest go."""

RESULT_SET_TURNOVER = 30.0
"""Seconds in which the kept stocks may be replaced by others once. Most answers are never paged through: a busy gateway
that kept them all would let each go before anybody comes back for it, and pay for it in memory and time."""

RETRY_MS = 1000
"""When to come again with a cursor that cannot be looked up now."""

_UNTOLD = frozenset({"k", "cursor"})
"""Params that may differ from page to page."""

_canonical = JSONEncoder(sort_keys=True).encode


def _names() -> Iterator[str]:
    """Names that nobody guesses; drawn by the hundred, which costs a tenth."""
    while True:
        drawn = urandom(1600).hex()
        yield from [drawn[start : start + 32] for start in range(0, len(drawn), 32)]


_new_names = _names()


class CursorRecord(NamedTuple):
    """Where the next page of a question begins."""

    fingerprint: str
    root: str
    """Names the question in sessions: the cursor of its second page."""
    result_set: str
    """Key of the stock that is served; empty if none is kept."""
    start: int = 0
    """The place in the stock's order."""
    returned: tuple[str, ...] = ()
    """Keys of all hits that were answered."""
    reach: int = 0
    """The window that engines were asked for."""


_BEGINNING = CursorRecord("", "", "")


class CursorState(NamedTuple):
    """What a request finds of earlier ones."""

    cursor: str | None = None
    place: CursorRecord = _BEGINNING
    result_set: ResultSet | None = None
    trajectory: Trajectory | None = None


FIRST = CursorState()
"""A request that continues nothing."""


class Pages:
    """Keeps and finds places, stocks and sessions."""

    __slots__ = ("_places", "_scope", "_seconds", "_stocks", "_suspicions", "_trajectories", "origins", "sessions")

    def __init__(
        self,
        places: Store,
        stocks: Store,
        sessions: RetrieveSessions,
        origins: HitOrigins,
        seconds: float,
        suspicions: PoisonReports | None = None,
    ) -> None:
        """A cursor can be used for so many `seconds`. Without `suspicions` no report is kept."""
        self._scope = ""
        self._trajectories = ""
        self._places = places
        self._stocks = stocks
        self._seconds = seconds
        self._suspicions = suspicions
        self.sessions = sessions
        self.origins = origins

    @classmethod
    def from_settings(
        cls,
        wishes: StateSettings,
        clock: Callable[[], float] = monotonic,
        screen: ScreenSettings | None = None,
        backend: StateBackend = IN_MEMORY,
    ) -> "Pages":
        """Pages within the bounds that are wished, shared as `sharing` says, by default with nobody."""
        reported = None
        if screen is not None and screen.feedback:
            reports = MemoryStore(wishes.max_sessions, wishes.max_sessions * KEYS_EACH, clock)
            reported = PoisonReports(
                backend.store("suspicions", reports), screen.feedback_ttl_seconds, screen.max_reported
            )
        sessions = MemoryStore(wishes.max_sessions, wishes.max_sessions * KEYS_EACH, clock)
        origins = MemoryStore(wishes.max_sessions, wishes.max_sessions * KEYS_EACH, clock)
        places = MemoryStore(wishes.max_cursors, wishes.max_cursors * KEYS_EACH, clock)
        stocks = MemoryStore(wishes.max_cursors, wishes.max_kept_hits, clock, turnover_seconds=RESULT_SET_TURNOVER)
        return cls(
            backend.store("pages", places),
            backend.store("pages", stocks, constant=True, max_bytes=wishes.max_shared_bytes),
            RetrieveSessions(backend.store("sessions", sessions), wishes.session_ttl_seconds, wishes.max_session_hits),
            HitOrigins(backend.store("sessions", origins), wishes.session_ttl_seconds, wishes.max_session_hits),
            wishes.cursor_ttl_seconds,
            reported,
        )

    async def report(self, ids: Iterable[str]) -> None:
        """Whoever asks calls the hits of these ids poisoned: they are marked in its answers from now on, if wanted."""
        if self._suspicions is not None:
            await self._suspicions.report(self._trajectories, ids)

    async def screen(self, wishes: ScreenSettings) -> InjectionScreen | None:
        """What looks at the hits that are to be answered to whoever asks; None if nobody wants it."""
        if not wishes.feedback and wishes.injection == "off":
            return None
        reported = () if self._suspicions is None else await self._suspicions.of(self._trajectories)
        return InjectionScreen(wishes.injection, reported)

    def within(self, tenant: Tenant) -> "Pages":
        """The same pages as this tenant finds them: another's do not exist, nor what was kept of engines that it does
        not see any more."""
        origins = self.origins.within(tenant.id)
        own = Pages(self._places, self._stocks, self.sessions, origins, self._seconds, self._suspicions)
        own._scope = tenant.scope
        own._trajectories = f"{tenant.id}:"
        return own

    async def cursor_state(self, params: RetrieveParams) -> CursorState:
        """What this request continues. Raises NotFound (-32015) for a cursor that is unknown, altered or over, and
        InvalidParams (-32602) for one of another question."""
        cursor, session_id = params.options.cursor, params.options.session_id
        if cursor is None and session_id is None:
            return FIRST
        place, result_set = _BEGINNING, None
        if cursor is not None:
            found = await self._places.get(self._scope + PLACE + cursor, _load_place)
            if found is None:
                raise self._unknown()
            if found.fingerprint != fingerprint(params):
                raise InvalidParams("the cursor belongs to another question: only 'k' may change", field="cursor")
            place = found
            result_set = await self._stocks.get(self._scope + RESULT_SET + place.result_set, load_result_set)
        trajectory = None
        if session_id is not None:
            trajectory = await self.sessions.trajectory(self._trajectories + session_id, place.root or next(_new_names))
        return CursorState(cursor, place, result_set, trajectory)

    async def restock(
        self, params: RetrieveParams, cursor_state: CursorState, result_set: ResultSet, reach: int
    ) -> CursorState:
        """The turn after engines were asked for `reach` hits each: `stock` is served from now on, from its beginning.

        Whoever comes with the same cursor is served the same; if somebody else was quicker, it is theirs for all.
        """
        place = cursor_state.place._replace(result_set="", start=0, reach=reach)
        if cursor_state.cursor is None:
            return cursor_state._replace(place=place, result_set=result_set)
        name = self._scope + PLACE + cursor_state.cursor
        now = await self._places.get(name, _load_place)
        if now is not None and now.result_set != cursor_state.place.result_set:
            theirs = await self._stocks.get(self._scope + RESULT_SET + now.result_set, load_result_set)
            if theirs is not None:
                return cursor_state._replace(place=now, result_set=theirs)
        ours = place._replace(result_set=_token(params, f"{cursor_state.cursor} {reach}", result_set))
        await self._stocks.put(
            self._scope + RESULT_SET + ours.result_set,
            result_set,
            self._seconds,
            dump_result_set,
            size=result_set.size(),
        )

        def quicker(then: CursorRecord | None) -> CursorRecord | None:
            return ours if then is None or then == now else None

        won = await self._places.change(name, quicker, self._seconds, _load_place, list, size=_size)
        if won is not None and won != ours:
            theirs = await self._stocks.get(self._scope + RESULT_SET + won.result_set, load_result_set)
            if theirs is not None:
                return cursor_state._replace(place=won, result_set=theirs)
        return cursor_state._replace(place=ours, result_set=result_set)

    async def keep(
        self, params: RetrieveParams, cursor_state: CursorState, result_set: ResultSet, page: Page, reach: int
    ) -> str:
        """Keep what is left after `portion` was answered; the cursor for it."""
        place = cursor_state.place
        told = place.fingerprint or fingerprint(params)
        cursor = _token(params, f"{told} {cursor_state.cursor} {page.end}", result_set)
        key = place.result_set
        if not key:
            key = cursor
            await self._stocks.put(
                self._scope + RESULT_SET + key, result_set, self._seconds, dump_result_set, size=result_set.size()
            )
        root = place.root or (cursor if cursor_state.trajectory is None else cursor_state.trajectory.root)
        returned = (*place.returned, *page.keys)
        left = CursorRecord(told, root, key, page.end, returned, reach)
        await self._places.put(self._scope + PLACE + cursor, left, self._seconds, list, size=_size(left))
        return cursor

    async def remember(
        self,
        session_id: str,
        cursor_state: CursorState,
        page: Page,
        result_set: ResultSet,
        *,
        for_feedback: bool = False,
    ) -> None:
        """Let the session know what it has been answered; `for_feedback` also whose hits they were."""
        if cursor_state.trajectory is not None:
            keys = session_keys_of(page, result_set.options.identity)
            await self.sessions.remember(self._trajectories + session_id, cursor_state.trajectory.root, keys)
        if for_feedback:
            await self.origins.remember(session_id, result_set.fusion.origins(page.keys))

    @property
    def degraded(self) -> bool:
        """Whether what is kept now, this gateway alone will find, and what others kept, it will not."""
        return self._places.degraded

    def _unknown(self) -> NotFound:
        if self.degraded:
            return NotFound(
                "the cursor cannot be looked up now, for the shared state is not at hand; try again shortly, or ask "
                "again without it",
                field="cursor",
                retryable=True,
                retryAfterMs=RETRY_MS,
            )
        return NotFound("the cursor is unknown or has expired; ask again without it", field="cursor")

    def __repr__(self) -> str:
        whose = f"of {self._scope} " if self._scope else ""
        return f"<Pages {whose}{self._places!r}, stocks {self._stocks!r}, {self.sessions!r}>"


def fingerprint(params: RetrieveParams) -> str:
    """What two requests for pages of one answer have in common: all but `k`, `cursor`, `_meta` and `explain`."""
    told = params.raw.copy()
    for key in _UNTOLD:
        told.pop(key, None)
    own = None
    if params.gateway.model_fields_set:
        own = params.gateway.model_dump(exclude_none=True, exclude={"explain"}) or None
    query = told["query"]
    if type(query) is list:
        told["query"] = comparable_query(query)
    lone = len(told) == 1 and own is None and type(query) is str
    text = f"q{query}" if lone else _canonical([told, own])  # the usual request costs a fifth; no other begins with q
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=15).hexdigest()


def reproducible(params: RetrieveParams) -> bool:
    """Whether the same request must be answered the same to the bit: a snapshot and a seed, and no memory of others."""
    options = params.options
    return options.seed is not None and options.index_version is not None and options.session_id is None


def _token(params: RetrieveParams, place: str, result_set: ResultSet) -> str:
    """A name that nobody guesses; for a reproducible request one that follows from what it names."""
    if not reproducible(params):
        return next(_new_names)
    text = "\n".join([place, *result_set.fusion.keys()])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _size(place: CursorRecord) -> int:
    return 1 + len(place.returned)


def _load_place(plain: list[Any]) -> CursorRecord:
    fingerprint, root, result_set, start, returned, reach = plain
    return CursorRecord(fingerprint, root, result_set, start, tuple(returned), reach)
