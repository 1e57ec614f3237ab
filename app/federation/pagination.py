"""Cursors: what one response saves so that the next request can continue it (RCP §7.7).

A cursor names a CursorRecord: the question, how far it was answered, and the result set that its pages are cut from. A
result set may be evicted before the cursor; the engines are then asked again, and hits already returned are left out.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from json import JSONEncoder
from os import urandom
from time import monotonic
from typing import Any, NamedTuple

from app.federation.attributions import Attributions
from app.federation.learning import Learning
from app.federation.result_set import Page, ResultSet, dump_result_set, load_result_set, session_keys_of
from app.federation.sessions import HitOrigins, PoisonReports, RetrieveSessions, Trajectory
from app.federation.tenants import Tenant
from app.fusion.injection_screen import InjectionScreen
from app.protocol.content import comparable_query
from app.protocol.errors import InvalidParams, NotFound
from app.protocol.retrieve_params import RetrieveParams
from app.settings.schema import ScreenSettings
from app.settings.state import StateSettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store

CURSOR = "place:"
RESULT_SET = "stock:"

# The prefixes name entries in a shared store. They stay as they are: during a rolling update, the gateways of the old
# and the new version continue each other's cursors.

KEYS_EACH = 100
"""Average number of hit keys per cursor or session that the stores are sized for."""

CLAIMS_EACH = 40
"""Claims of engines about shown hits that a session holds on average if their store is full."""

RESULT_SET_TURNOVER = 30.0
"""The store of result sets is refilled at most once in this many seconds; result sets beyond that rate are not saved.

Most answers are never paged through. A busy gateway that saved them all would evict each one before its second page is
requested, and would pay for it in memory and CPU."""

RETRY_MS = 1000
"""Retry hint for a cursor that cannot be looked up during an outage of the shared state."""

_PER_PAGE = frozenset({"k", "cursor"})
"""Params that may differ from page to page."""

_canonical = JSONEncoder(sort_keys=True).encode


def _names() -> Iterator[str]:
    """Unguessable cursor names."""
    while True:
        drawn = urandom(1600).hex()  # a hundred names per system call cost a tenth of one call each
        yield from [drawn[start : start + 32] for start in range(0, len(drawn), 32)]


_new_names = _names()


class CursorRecord(NamedTuple):
    """Where the next page of a question begins."""

    fingerprint: str
    root: str
    """Identifies the question within a session: the cursor of its second page."""
    result_set: str
    """Key of the saved result set; empty if there is none."""
    start: int = 0
    """Position of the next page in the order of the result set."""
    returned: tuple[str, ...] = ()
    """Keys of all hits returned so far."""
    reach: int = 0
    """The number of hits that each engine was asked for."""
    selected: tuple[str, ...] = ()
    """The engines asked for the first page, if engine selection left some out: later pages ask no other."""


_BEGINNING = CursorRecord("", "", "")


class CursorState(NamedTuple):
    """What a request continues."""

    cursor: str | None = None
    record: CursorRecord = _BEGINNING
    result_set: ResultSet | None = None
    trajectory: Trajectory | None = None


FIRST = CursorState()
"""A request that continues nothing: no cursor and no session."""


class Pages:
    """Saves and loads cursors and result sets, and what sessions remember."""

    __slots__ = (
        "_cursors",
        "_reports",
        "_result_sets",
        "_scope",
        "_seconds",
        "_session_prefix",
        "attributions",
        "learning",
        "origins",
        "sessions",
    )

    def __init__(
        self,
        cursors: Store,
        result_sets: Store,
        sessions: RetrieveSessions,
        origins: HitOrigins,
        seconds: float,
        reports: PoisonReports | None = None,
        attributions: Attributions | None = None,
        learning: Learning | None = None,
    ) -> None:
        """`seconds`: lifetime of a cursor. Without `reports`, poison reports are ignored; without `attributions`,
        nothing is learned from feedback."""
        self._scope = ""
        self._session_prefix = ""
        self._cursors = cursors
        self._result_sets = result_sets
        self._seconds = seconds
        self._reports = reports
        self.sessions = sessions
        self.origins = origins
        self.attributions = attributions
        self.learning = Learning() if learning is None else learning

    @classmethod
    def from_settings(
        cls,
        settings: StateSettings,
        clock: Callable[[], float] = monotonic,
        screen: ScreenSettings | None = None,
        backend: StateBackend = IN_MEMORY,
        learning: Learning | None = None,
    ) -> "Pages":
        """Stores with the configured bounds, in `backend`."""
        reported = None
        if screen is not None and screen.feedback:
            memory = MemoryStore(settings.max_sessions, settings.max_sessions * KEYS_EACH, clock)
            reported = PoisonReports(
                backend.store("suspicions", memory), screen.feedback_ttl_seconds, screen.max_reported
            )
        sessions = MemoryStore(settings.max_sessions, settings.max_sessions * KEYS_EACH, clock)
        origins = MemoryStore(settings.max_sessions, settings.max_sessions * KEYS_EACH, clock)
        shown = MemoryStore(settings.max_sessions, settings.max_sessions * CLAIMS_EACH, clock)
        cursors = MemoryStore(settings.max_cursors, settings.max_cursors * KEYS_EACH, clock)
        result_sets = MemoryStore(
            settings.max_cursors, settings.max_kept_hits, clock, turnover_seconds=RESULT_SET_TURNOVER
        )
        return cls(
            backend.store("pages", cursors),
            backend.store("pages", result_sets, constant=True, max_bytes=settings.max_shared_bytes),
            RetrieveSessions(
                backend.store("sessions", sessions), settings.session_ttl_seconds, settings.max_session_hits
            ),
            HitOrigins(backend.store("sessions", origins), settings.session_ttl_seconds, settings.max_session_hits),
            settings.cursor_ttl_seconds,
            reported,
            Attributions(backend.store("sessions", shown), settings.session_ttl_seconds, settings.max_session_hits),
            learning,
        )

    async def report(self, ids: Iterable[str]) -> None:
        """Record that the caller reports these hits as poisoned (RCP §7.14)."""
        if self._reports is not None:
            await self._reports.report(self._session_prefix, ids)

    async def screen(self, settings: ScreenSettings) -> InjectionScreen | None:
        """The injection screen for one response; None if no screening is configured."""
        if not settings.feedback and settings.injection == "off":
            return None
        reported = () if self._reports is None else await self._reports.load(self._session_prefix)
        return InjectionScreen(settings.injection, reported)

    def for_tenant(self, tenant: Tenant) -> "Pages":
        """The same stores, limited to one tenant.

        A tenant cannot use the cursors of another, nor its own from before its list of engines changed.
        """
        origins = self.origins.for_tenant(tenant.id)
        shown = None if self.attributions is None else self.attributions.for_tenant(tenant.id)
        own = Pages(
            self._cursors, self._result_sets, self.sessions, origins, self._seconds, self._reports, shown, self.learning
        )
        # The scope contains a digest of the tenant's engines, so a change of its rights invalidates its cursors.
        own._scope = tenant.scope
        own._session_prefix = f"{tenant.id}:"
        return own

    async def cursor_state(self, params: RetrieveParams) -> CursorState:
        """What this request continues.

        Raises NotFound (-32015) for a cursor that is unknown, altered or expired, and InvalidParams (-32602) for the
        cursor of another question.
        """
        cursor, session_id = params.options.cursor, params.options.session_id
        if cursor is None and session_id is None:
            return FIRST
        record, result_set = _BEGINNING, None
        if cursor is not None:
            found = await self._cursors.get(self._scope + CURSOR + cursor, _load_record)
            if found is None:
                raise self._unknown()
            if found.fingerprint != fingerprint(params):
                raise InvalidParams("the cursor belongs to another request; only 'k' may differ", field="cursor")
            # Only now is it known that the cursor exists and belongs to this request.
            record = found
            result_set = await self._result_sets.get(self._scope + RESULT_SET + record.result_set, load_result_set)
        trajectory = None
        if session_id is not None:
            trajectory = await self.sessions.trajectory(
                self._session_prefix + session_id, record.root or next(_new_names)
            )
        return CursorState(cursor, record, result_set, trajectory)

    async def replace_result_set(
        self, params: RetrieveParams, cursor_state: CursorState, result_set: ResultSet, reach: int
    ) -> CursorState:
        """The state after engines were asked for `reach` hits each: pages are cut from `result_set`, from its start.

        Concurrent requests with the same cursor get the same page: the first to save its result set wins, and the
        others serve that one.
        """
        record = cursor_state.record._replace(result_set="", start=0, reach=reach)
        if cursor_state.cursor is None:  # a session's first page: no other request can have this state
            return cursor_state._replace(record=record, result_set=result_set)
        name = self._scope + CURSOR + cursor_state.cursor
        now = await self._cursors.get(name, _load_record)
        # Another request with the same cursor has already replaced the result set: serve that one.
        if now is not None and now.result_set != cursor_state.record.result_set:
            theirs = await self._result_sets.get(self._scope + RESULT_SET + now.result_set, load_result_set)
            if theirs is not None:
                return cursor_state._replace(record=now, result_set=theirs)
        ours = record._replace(result_set=_token(params, f"{cursor_state.cursor} {reach}", result_set))
        await self._result_sets.put(
            self._scope + RESULT_SET + ours.result_set,
            result_set,
            self._seconds,
            dump_result_set,
            size=result_set.size(),
        )

        def unless_changed(then: CursorRecord | None) -> CursorRecord | None:
            return ours if then is None or then == now else None

        # Decides the race: exactly one of several concurrent requests replaces the record.
        won = await self._cursors.change(name, unless_changed, self._seconds, _load_record, _dump_record, size=_size)
        if won is not None and won != ours:
            theirs = await self._result_sets.get(self._scope + RESULT_SET + won.result_set, load_result_set)
            if theirs is not None:
                return cursor_state._replace(record=won, result_set=theirs)
        return cursor_state._replace(record=ours, result_set=result_set)

    async def save(
        self,
        params: RetrieveParams,
        cursor_state: CursorState,
        result_set: ResultSet,
        page: Page,
        reach: int,
        selected: tuple[str, ...] = (),
    ) -> str:
        """Save what the page after `page` needs; returns its cursor. `selected`: the engines that later pages may ask;
        empty for all."""
        record = cursor_state.record
        question = record.fingerprint or fingerprint(params)
        cursor = _token(params, f"{question} {cursor_state.cursor} {page.end}", result_set)
        key = record.result_set
        if not key:
            # The first page of a result set saves it; later pages refer to it by the same key.
            key = cursor
            await self._result_sets.put(
                self._scope + RESULT_SET + key, result_set, self._seconds, dump_result_set, size=result_set.size()
            )
        root = record.root or (cursor if cursor_state.trajectory is None else cursor_state.trajectory.root)
        # Kept apart from the result set, which may be evicted first: then these keys are what must be left out.
        returned = (*record.returned, *page.keys)
        following = CursorRecord(question, root, key, page.end, returned, reach, selected)
        await self._cursors.put(
            self._scope + CURSOR + cursor, following, self._seconds, _dump_record, size=_size(following)
        )
        return cursor

    async def copy_cursor(self, cursor: str, params: RetrieveParams) -> str | None:
        """Another cursor for the same page, so that callers of one shared answer do not hold each other's; None if the
        cursor has expired."""
        if reproducible(params):
            return cursor
        record = await self._cursors.get(self._scope + CURSOR + cursor, _load_record)
        if record is None:
            return None
        own = next(_new_names)
        await self._cursors.put(self._scope + CURSOR + own, record, self._seconds, _dump_record, size=_size(record))
        return own

    async def remember(
        self,
        session_id: str,
        cursor_state: CursorState,
        page: Page,
        result_set: ResultSet,
        *,
        for_feedback: bool = False,
        for_learning: bool = False,
    ) -> None:
        """Remember in the session which hits were returned; with `for_feedback`, also which engines they came from;
        with `for_learning`, also the claims of these engines that learned calibration needs."""
        if cursor_state.trajectory is not None:
            keys = session_keys_of(page, result_set.options.identity)
            await self.sessions.remember(self._session_prefix + session_id, cursor_state.trajectory.root, keys)
        if for_feedback:
            await self.origins.remember(session_id, result_set.fusion.origins(page.keys))
        if for_learning and self.attributions is not None:
            ids = [f"{hit['id']}" for hit in page.hits]
            await self.attributions.remember(session_id, ids, result_set.fusion.claims(page.keys))

    @property
    def degraded(self) -> bool:
        """Whether the shared state is unavailable, so that cursors work only at the gateway that issued them."""
        return self._cursors.degraded

    def _unknown(self) -> NotFound:
        if self.degraded:
            return NotFound(
                "the cursor cannot be looked up because the shared state is unavailable; retry shortly, or send the "
                "request without it",
                field="cursor",
                retryable=True,
                retryAfterMs=RETRY_MS,
            )
        return NotFound("the cursor is unknown or has expired; send the request without it", field="cursor")

    def __repr__(self) -> str:
        whose = f"of {self._scope} " if self._scope else ""
        return f"<Pages {whose}{self._cursors!r}, result sets {self._result_sets!r}, {self.sessions!r}>"


def fingerprint(params: RetrieveParams) -> str:
    """A digest of everything that the pages of one answer have in common: all params but `k`, `cursor`, `_meta`,
    `explain`, `report`, `select` and `cache`."""
    fields = params.raw.copy()
    for key in _PER_PAGE:
        fields.pop(key, None)
    extension = None
    if params.gateway.model_fields_set:
        # `explain` and `report` change what is reported, not what is found; `select` is decided by the first page.
        extension = (
            params.gateway.model_dump(exclude_none=True, exclude={"explain", "report", "select", "cache"}) or None
        )
    # Different spellings of the same content blocks are the same question.
    query = fields["query"]
    if type(query) is list:
        fields["query"] = comparable_query(query)
    query_only = len(fields) == 1 and extension is None and type(query) is str
    # The usual request has a query alone and skips the JSON; no JSON text begins with `q`.
    text = f"q{query}" if query_only else _canonical([fields, extension])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=15).hexdigest()


def reproducible(params: RetrieveParams) -> bool:
    """Whether equal requests must get identical responses: pinned to a snapshot, with a seed, and outside a session."""
    options = params.options
    return options.seed is not None and options.index_version is not None and options.session_id is None


def _token(params: RetrieveParams, subject: str, result_set: ResultSet) -> str:
    """A cursor: random, so that it cannot be guessed; for a reproducible request, a digest of what it names."""
    if not reproducible(params):
        return next(_new_names)
    # Includes the order, so that a reproducible cursor changes when the engines' answers do.
    text = "\n".join([subject, *result_set.fusion.keys()])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _size(record: CursorRecord) -> int:
    return 1 + len(record.returned) + len(record.selected)


def _dump_record(record: CursorRecord) -> list[Any]:
    # Without selection the form is that of earlier versions, which read it during a rolling update.
    return list(record) if record.selected else list(record[:-1])


def _load_record(plain: list[Any]) -> CursorRecord:
    fingerprint, root, result_set, start, returned, reach, *selected = plain
    return CursorRecord(
        fingerprint, root, result_set, start, tuple(returned), reach, tuple(selected[0]) if selected else ()
    )
