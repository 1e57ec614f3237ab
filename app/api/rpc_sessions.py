"""Sessions of callers (RCP §5.2, §13). `initialize` begins one; `info`, `ping` and `shutdown` work without.

Over stdio there is one session, and it is required. Over HTTP sessions are required with `server.handshake: required`.
A session keeps the engines and capabilities with which it began.
"""

from collections.abc import Callable, Mapping, Sequence
from secrets import token_urlsafe
from typing import Any, NamedTuple, Protocol

from app.api.caller import Caller
from app.federation.capabilities import EngineOffer
from app.federation.session_engines import SessionSets, with_departed
from app.protocol.errors import InvalidRequest, NotInitialized
from app.protocol.method_names import UNGATED
from app.protocol.retrieve_params import LOG_LEVELS
from app.settings.schema import GatewaySettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store

DEFAULT_LOG_LEVEL = "info"
"""The level for a caller that requests a log without a level."""

SET_ENGINES = 100
"""Assumed average number of engines in a set, for the size limit of the store."""

Offers = Callable[[Caller], Sequence[EngineOffer]]
"""The current offers of the engines that a caller addresses."""


class Session(NamedTuple):
    """One session as it is stored."""

    partner: str
    """The other store key of the session, which can be found by token and by address."""
    engines: str
    """Digest of the engines with which it began."""
    log_level: str | None = None
    begun: int = 1
    """Calls of `initialize` minus calls of `shutdown`: clients behind one address share a session."""


class RpcSessions(Protocol):
    """Stores the sessions of one transport."""

    async def find(self, caller: Caller) -> Session | None:
        """The caller's session, if it is initialized. This renews its lifetime."""
        ...

    async def has_token(self, caller: Caller) -> bool:
        """Whether the caller has a session of its own, which cannot be initialized twice."""
        ...

    @property
    def unreachable(self) -> bool:
        """Whether the store cannot be reached now, so that a missing session may exist."""
        ...

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> str | None:
        """Begin a session with these engines. Returns its token, if the transport uses tokens."""
        ...

    async def end(self, caller: Caller) -> None:
        """End the caller's session."""
        ...


class CallerSessions:
    """The sessions of HTTP callers, separately for the federation and for each engine.

    A caller that sends its token has the session of that token. All others, including those with an unknown or expired
    token, have the session of their address: clients that cannot set headers are indistinguishable behind one address
    and share a session, which ends when all have called `shutdown`.
    """

    __slots__ = ("_seconds", "_sets", "_store")

    def __init__(self, store: Store, sets: SessionSets, seconds: float) -> None:
        """A session expires `seconds` after its last use."""
        self._store = store
        self._sets = sets
        self._seconds = seconds

    async def find(self, caller: Caller) -> Session | None:
        """The session, by token or by address. This renews its lifetime."""
        if caller.session is not None:
            by_token = _by_token(caller, caller.session)
            session = await self._store.get(by_token, _load)
            if session is not None:
                await self._put(by_token, session)
                return session
        # An atomic change: clients that share an address may modify the session while this call renews it.
        by_address = _by_address(caller)
        return await self._store.change(by_address, _as_it_is, self._seconds, _load, list, size=_size)

    async def has_token(self, caller: Caller) -> bool:
        """Whether the caller sent the token of a session."""
        return (
            caller.session is not None and await self._store.get(_by_token(caller, caller.session), _load) is not None
        )

    @property
    def unreachable(self) -> bool:
        """Whether the shared store cannot be reached."""
        return self._store.degraded

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> str:
        """Begin a session and return its token."""
        token = token_urlsafe(18)
        by_token, by_address = _by_token(caller, token), _by_address(caller)
        engines = await self._sets.keep(offers)
        shared = engines.digest
        other = await self._store.get(by_address, _load)
        # Another client at this address must keep all engines that it was promised, so departed ones are added.
        if other is not None and other.engines != shared:
            before = await self._sets.find(other.engines)
            if before is not None:
                shared = (await self._sets.keep(with_departed(offers, before.offers))).digest

        def change(session: Session | None) -> Session:
            return Session(by_token, shared, log_level, 1 if session is None else session.begun + 1)

        await self._put(by_token, Session(by_address, engines.digest, log_level))
        await self._store.change(by_address, change, self._seconds, _load, list, size=_size)
        return token

    async def end(self, caller: Caller) -> None:
        """End the session of the token, and that of the address with its last client."""
        by_address = _by_address(caller)
        if caller.session is not None:
            by_token = _by_token(caller, caller.session)
            session = await self._store.get(by_token, _load)
            if session is not None:
                await self._store.delete(by_token)
                by_address = session.partner

        def change(session: Session | None) -> Session | None:
            return None if session is None else session._replace(begun=session.begun - 1)

        left = await self._store.change(by_address, change, self._seconds, _load, list, size=_size)
        if left is not None and left.begun <= 0:
            await self._store.delete(by_address)
            await self._store.delete(left.partner)

    async def _put(self, key: str, session: Session) -> None:
        await self._store.put(key, session, self._seconds, list)

    def __repr__(self) -> str:
        return f"<CallerSessions for {self._seconds:g} s in {self._store!r}>"


class SingleSession:
    """The session of a transport with one caller. `ended` is called on `shutdown`."""

    __slots__ = ("_ended", "_session", "_sets")

    def __init__(self, sets: SessionSets, ended: Callable[[], None]) -> None:
        self._sets = sets
        self._ended = ended
        self._session: Session | None = None

    async def find(self, caller: Caller) -> Session | None:
        """The session; None before the handshake."""
        return self._session

    async def has_token(self, caller: Caller) -> bool:
        """Whether the handshake has taken place: a pipe has one caller."""
        return self._session is not None

    @property
    def unreachable(self) -> bool:
        """False: the session is in this object."""
        return False

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> None:
        """Begin the session. A pipe needs no token."""
        self._session = Session("", (await self._sets.keep(offers)).digest, log_level)

    async def end(self, caller: Caller) -> None:
        """End the session, and with it the connection."""
        # The endpoint stops reading, and still answers the requests in flight.
        self._ended()

    def __repr__(self) -> str:
        return f"<SingleSession {'not ' if self._session is None else ''}initialized>"


class HandshakePolicy:
    """Requires `initialize` before other methods, for the sessions of one transport."""

    __slots__ = ("_offers", "_sessions", "_sets")

    def __init__(self, sessions: RpcSessions, sets: SessionSets, offers: Offers) -> None:
        self._sessions = sessions
        self._sets = sets
        self._offers = offers

    async def before(self, method: str, caller: Caller) -> Caller:
        """The caller with the data of its session.

        Raises NotInitialized (-32001) without a session, InvalidRequest (-32600) for a second `initialize`.
        """
        if method == "initialize":
            if await self._sessions.has_token(caller):
                raise InvalidRequest(
                    "this session is already initialized; call 'info' for its capabilities", field="method"
                )
            return caller
        session = await self._sessions.find(caller)
        if session is not None:
            return caller._replace(session_engines=await self._sets.find(session.engines), log_level=session.log_level)
        # While the store cannot be reached, every caller passes: the handshake is no protection, and must not cost
        # availability.
        if method not in UNGATED and not self._sessions.unreachable:
            raise NotInitialized("this session is not initialized; send 'initialize' first")
        return caller

    async def after(self, method: str, caller: Caller, params: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Begin or end a session after a successful `initialize` or `shutdown`. Adds the session token to `result`."""
        if method == "initialize":
            # Nothing was awaited since the result was built, so these are the engines that it describes.
            token = await self._sessions.begin(caller, self._offers(caller), log_level_of(params))
            if token is not None:
                result["_meta"] = {**result.get("_meta", {}), "session": token}
        elif method == "shutdown":
            await self._sessions.end(caller)

    def __repr__(self) -> str:
        return f"<HandshakePolicy of {self._sessions!r}>"


def log_level_of(params: Mapping[str, Any]) -> str | None:
    """The log level of a session, from the params of `initialize` (RCP §17.1); None: no log."""
    capabilities, meta = params.get("capabilities"), params.get("_meta")
    wanted = capabilities.get("log") if type(capabilities) is dict else None
    level = meta.get("logLevel") if type(meta) is dict else None
    if type(level) is str and level in LOG_LEVELS:
        return None if wanted is False else level
    return None if wanted is None or wanted is False else DEFAULT_LOG_LEVEL


def http_handshake(
    settings: GatewaySettings, offers: Offers, backend: StateBackend = IN_MEMORY
) -> HandshakePolicy | None:
    """The policy for HTTP; None if the settings do not require a handshake."""
    if settings.server.handshake == "optional":
        return None
    most = 2 * settings.state.max_sessions  # two keys per session: token and address
    seconds = settings.state.session_ttl_seconds
    # Permanent: a session survives a change of the registry, when the engines with which it began matter most.
    store = backend.store("handshakes", MemoryStore(most, most), permanent=True)
    sets = session_sets(settings, backend)
    return HandshakePolicy(CallerSessions(store, sets, seconds), sets, offers)


def session_sets(settings: GatewaySettings, backend: StateBackend = IN_MEMORY) -> SessionSets:
    """The store for the engines of sessions. There are at most as many sets as sessions."""
    most = settings.state.max_sessions
    kept = MemoryStore(most, most * SET_ENGINES)
    store = backend.store("session-engines", kept, constant=True, permanent=True)
    return SessionSets(store, settings.state.session_ttl_seconds)


def _by_address(caller: Caller) -> str:
    return f"caller:{caller.engine or ''}:{caller.name}"


def _by_token(caller: Caller, token: str) -> str:
    owner = "" if caller.tenant is None else caller.tenant.id
    return f"token:{caller.engine or ''}:{owner}:{token}"


def _as_it_is(session: Session | None) -> Session | None:
    return session


def _size(session: Session) -> int:
    return 1


def _load(plain: list[Any]) -> Session:
    partner, engines, log_level, begun = plain
    return Session(partner, engines, log_level, begun)
