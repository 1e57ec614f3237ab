"""Sessions of callers (RCP §5.2, §13): begun by `initialize`, needed before anything but `info`, `ping`, `shutdown`.

Over stdio there is one session and it is always needed; over HTTP it is with `handshake: required`. A session keeps the
engines and capabilities that it began with.
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
"""Of a caller that wants a log and does not say how much of it."""

SET_ENGINES = 100
"""Engines of a set on average if the store of sets is full."""

Offers = Callable[[Caller], Sequence[EngineOffer]]
"""What the engines that a caller speaks to offer now."""


class Session(NamedTuple):
    """One session as it is kept."""

    partner: str
    """The other key of the same session: it is found by its token and by its address."""
    engines: str
    """Digest of the engines that it began with."""
    log_level: str | None = None
    begun: int = 1
    """How often `initialize` has been called for it and `shutdown` has not: clients of one address share a session."""


class RpcSessions(Protocol):
    """The sessions of one transport."""

    async def find(self, caller: Caller) -> Session | None:
        """The caller's session, if it is initialized. It lives on."""
        ...

    async def named(self, caller: Caller) -> bool:
        """Whether the caller proves that it has a session of its own, which cannot begin twice."""
        ...

    @property
    def unsure(self) -> bool:
        """Whether a session that is not known here may be known elsewhere, where nobody can look now."""
        ...

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> str | None:
        """Begin a session with these engines. Its token, if the transport's sessions have one."""
        ...

    async def end(self, caller: Caller) -> None:
        """Its session is over: it may begin another."""
        ...


class CallerSessions:
    """The sessions of HTTP callers, each at one endpoint: that of the federation, or of one engine.

    Callers that send back the token they were given have the session of that token. All others have the session of
    their address, also those that send a token that is unknown, forged or expired: clients that cannot set headers
    cannot be told apart behind one address, so they share a session. It ends when each has shut down.
    """

    __slots__ = ("_seconds", "_sets", "_store")

    def __init__(self, store: Store, sets: SessionSets, seconds: float) -> None:
        """A session ends `seconds` after it was last used."""
        self._store = store
        self._sets = sets
        self._seconds = seconds

    async def find(self, caller: Caller) -> Session | None:
        """The session, by token or by address; it then lives on."""
        if caller.session is not None:
            by_token = _by_token(caller, caller.session)
            session = await self._store.get(by_token, _load)
            if session is not None:
                await self._put(by_token, session)
                return session
        # Clients that share an address change the session while others renew it: none of that may be lost.
        by_address = _by_address(caller)
        return await self._store.change(by_address, _as_it_is, self._seconds, _load, list, size=_size)

    async def named(self, caller: Caller) -> bool:
        """Whether it sends the token of a session."""
        return (
            caller.session is not None and await self._store.get(_by_token(caller, caller.session), _load) is not None
        )

    @property
    def unsure(self) -> bool:
        """Whether other gateways' sessions cannot be looked up."""
        return self._store.degraded

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> str:
        """A session of the caller, and its token.

        Another client at the same address keeps all that it was promised: engines that have left since stay.
        """
        token = token_urlsafe(18)
        by_token, by_address = _by_token(caller, token), _by_address(caller)
        engines = await self._sets.keep(offers)
        shared = engines.digest
        other = await self._store.get(by_address, _load)
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
        """End the session of the token; that of the address when it was the last there."""
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
    """The session of a transport with one caller, as long as it is open; `ended` is called when the caller ends it."""

    __slots__ = ("_ended", "_session", "_sets")

    def __init__(self, sets: SessionSets, ended: Callable[[], None]) -> None:
        self._sets = sets
        self._ended = ended
        self._session: Session | None = None

    async def find(self, caller: Caller) -> Session | None:
        """The session, once there has been a handshake."""
        return self._session

    async def named(self, caller: Caller) -> bool:
        """Whether there has been one: a pipe has one caller."""
        return self._session is not None

    @property
    def unsure(self) -> bool:
        """There is no elsewhere."""
        return False

    async def begin(self, caller: Caller, offers: Sequence[EngineOffer], log_level: str | None) -> None:
        """There has been one. A pipe needs no token."""
        self._session = Session("", (await self._sets.keep(offers)).digest, log_level)

    async def end(self, caller: Caller) -> None:
        """The caller wants to leave."""
        self._ended()

    def __repr__(self) -> str:
        return f"<SingleSession {'not ' if self._session is None else ''}initialized>"


class HandshakePolicy:
    """The rule, for one transport's sessions."""

    __slots__ = ("_offers", "_sessions", "_sets")

    def __init__(self, sessions: RpcSessions, sets: SessionSets, offers: Offers) -> None:
        self._sessions = sessions
        self._sets = sets
        self._offers = offers

    async def before(self, method: str, caller: Caller) -> Caller:
        """The caller in its session, where `method` may be called now, known or not.

        Raises NotInitialized (-32001) if it is too early, InvalidRequest (-32600) for a second `initialize`. While
        sessions cannot be looked up everybody passes: the rule protects nothing.
        """
        if method == "initialize":
            if await self._sessions.named(caller):
                raise InvalidRequest("this session is initialized already; 'info' tells what it can do", field="method")
            return caller
        session = await self._sessions.find(caller)
        if session is not None:
            return caller._replace(begun=await self._sets.find(session.engines), log_level=session.log_level)
        if method not in UNGATED and not self._sessions.unsure:
            raise NotInitialized("this session is not initialized; send 'initialize' first")
        return caller

    async def after(self, method: str, caller: Caller, params: Mapping[str, Any], result: dict[str, Any]) -> None:
        """`method` has been answered with `result`: a session may have begun, which gives it a token, or ended."""
        if method == "initialize":
            # Nothing was awaited since the result was made: these are the engines that it speaks of.
            token = await self._sessions.begin(caller, self._offers(caller), log_level_of(params))
            if token is not None:
                result["_meta"] = {**result.get("_meta", {}), "session": token}
        elif method == "shutdown":
            await self._sessions.end(caller)

    def __repr__(self) -> str:
        return f"<HandshakePolicy of {self._sessions!r}>"


def log_level_of(params: Mapping[str, Any]) -> str | None:
    """What a caller wants to have logged in its whole session, as its `initialize` says (RCP §17.1); None: nothing."""
    capabilities, meta = params.get("capabilities"), params.get("_meta")
    wanted = capabilities.get("log") if type(capabilities) is dict else None
    level = meta.get("logLevel") if type(meta) is dict else None
    if type(level) is str and level in LOG_LEVELS:
        return None if wanted is False else level
    return None if wanted is None or wanted is False else DEFAULT_LOG_LEVEL


def http_handshake(
    settings: GatewaySettings, offers: Offers, backend: StateBackend = IN_MEMORY
) -> HandshakePolicy | None:
    """What the settings demand over HTTP; None where every request counts as initialized."""
    if settings.server.handshake == "optional":
        return None
    most = 2 * settings.state.max_sessions  # each is found by its token and by its address
    seconds = settings.state.session_ttl_seconds
    # A session outlives a change of the registry: that is when it matters what it began with.
    store = backend.store("handshakes", MemoryStore(most, most), permanent=True)
    sets = session_sets(settings, backend)
    return HandshakePolicy(CallerSessions(store, sets, seconds), sets, offers)


def session_sets(settings: GatewaySettings, backend: StateBackend = IN_MEMORY) -> SessionSets:
    """Where the engines of sessions are kept: no more sets than sessions."""
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
