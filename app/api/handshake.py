"""Who has shaken hands (RCP §5.2, §13): needed before anything but `initialize`, `info`, `ping` and `shutdown`.

Over stdio there is one session and it always has to; over HTTP callers have to with `handshake: required`. It decides
whose session a message belongs to. It refuses to know what is asked in it.
"""

from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any, Protocol

from app.api.caller import Caller
from app.protocol.errors import InvalidRequest, NotInitialized
from app.protocol.messages import UNGATED
from app.settings.schema import GatewaySettings
from app.state.alone import ALONE
from app.state.memory import MemoryStore
from app.state.store import Sharing, Store


class Sessions(Protocol):
    """The sessions behind one door."""

    async def done(self, caller: Caller) -> bool:
        """Whether this caller's session is initialized."""
        ...

    @property
    def unsure(self) -> bool:
        """Whether a session that is not known here may be known elsewhere, where nobody can look now."""
        ...

    async def begin(self, caller: Caller) -> str | None:
        """Its session is initialized from here on. The token of it, if the door's sessions have one."""
        ...

    async def end(self, caller: Caller) -> None:
        """Its session is over: it may begin another."""
        ...


class CallerSessions:
    """The sessions of HTTP callers, each at one endpoint: that of the federation, or of one engine.

    Whoever sends back the token it was given has the session of that token. Anybody else has the one session of its
    address, and so has whoever sends a token that is unknown, forged or over.
    """

    __slots__ = ("_seconds", "_store")

    def __init__(self, store: Store, seconds: float) -> None:
        """A session ends `seconds` after it was last used."""
        self._store = store
        self._seconds = seconds

    async def done(self, caller: Caller) -> bool:
        """Whether the session is known; it then lives on."""
        key, partner = await self._found(caller)
        if partner is not None:
            await self._store.put(key, partner, self._seconds, _as_it_is)
        return partner is not None

    @property
    def unsure(self) -> bool:
        """Whether other gateways' sessions cannot be looked up."""
        return self._store.degraded

    async def begin(self, caller: Caller) -> str:
        """A session of the caller, and its token."""
        token = token_urlsafe(18)
        by_token, by_address = _by_token(caller, token), _by_address(caller)
        await self._store.put(by_token, by_address, self._seconds, _as_it_is)
        await self._store.put(by_address, by_token, self._seconds, _as_it_is)
        return token

    async def end(self, caller: Caller) -> None:
        """Forget the session, by its token and by its address; the address may meanwhile have another."""
        key, partner = await self._found(caller)
        if partner is None:
            return
        await self._store.delete(key)
        if await self._store.get(partner, _as_it_is) == key:
            await self._store.delete(partner)

    async def _found(self, caller: Caller) -> tuple[str, str | None]:
        """(key of the caller's session, the other key of the same one; None if there is no session)."""
        if caller.session is not None:
            key = _by_token(caller, caller.session)
            partner = await self._store.get(key, _as_it_is)
            if partner is not None:
                return key, partner
        key = _by_address(caller)
        return key, await self._store.get(key, _as_it_is)

    def __repr__(self) -> str:
        return f"<CallerSessions for {self._seconds:g} s in {self._store!r}>"


class OneSession:
    """The session of a door with one caller, as long as the door is open; `ended` is called when the caller ends it."""

    __slots__ = ("_ended", "_initialized")

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._initialized = False

    async def done(self, caller: Caller) -> bool:
        """Whether there has been a handshake."""
        return self._initialized

    @property
    def unsure(self) -> bool:
        """There is no elsewhere."""
        return False

    async def begin(self, caller: Caller) -> None:
        """There has been one. A pipe needs no token."""
        self._initialized = True

    async def end(self, caller: Caller) -> None:
        """The caller wants to leave."""
        self._ended()

    def __repr__(self) -> str:
        return f"<OneSession {'initialized' if self._initialized else 'not initialized'}>"


class Handshake:
    """The rule, for one door's sessions."""

    __slots__ = ("_sessions",)

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def before(self, method: str, caller: Caller) -> None:
        """Whether `method` may be called now, known or not: NotInitialized (-32001) if it is too early.

        Raises InvalidRequest (-32600) for a second `initialize`. While sessions cannot be looked up everybody passes:
        the rule protects nothing.
        """
        if method == "initialize":
            if await self._sessions.done(caller):
                raise InvalidRequest("this session is initialized already; 'info' tells what it can do", field="method")
        elif method not in UNGATED and not await self._sessions.done(caller) and not self._sessions.unsure:
            raise NotInitialized("this session is not initialized; send 'initialize' first")

    async def after(self, method: str, caller: Caller, result: dict[str, Any]) -> None:
        """`method` has been answered with `result`: a session may have begun, which gives it a token, or ended."""
        if method == "initialize":
            token = await self._sessions.begin(caller)
            if token is not None:
                result["_meta"] = {**result.get("_meta", {}), "session": token}
        elif method == "shutdown":
            await self._sessions.end(caller)

    def __repr__(self) -> str:
        return f"<Handshake of {self._sessions!r}>"


def http_handshake(settings: GatewaySettings, sharing: Sharing = ALONE) -> Handshake | None:
    """What the settings demand over HTTP; None where every request counts as initialized."""
    if settings.server.handshake == "optional":
        return None
    most = 2 * settings.state.max_sessions  # each is found by its token and by its address
    store = sharing.store("handshakes", MemoryStore(most, most))
    return Handshake(CallerSessions(store, settings.state.session_ttl_seconds))


def _by_address(caller: Caller) -> str:
    return f"caller:{caller.engine or ''}:{caller.name}"


def _by_token(caller: Caller, token: str) -> str:
    owner = "" if caller.tenant is None else caller.tenant.id
    return f"token:{caller.engine or ''}:{owner}:{token}"


def _as_it_is(value: Any) -> Any:
    return value
