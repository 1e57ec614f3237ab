"""Whose session a message belongs to, and what is refused before and after a handshake."""

from typing import Any

import pytest

from app.api.caller import Caller
from app.api.rpc_sessions import CallerSessions, HandshakePolicy, SingleSession, http_handshake
from app.federation.session_engines import SessionSets
from app.protocol.errors import InvalidRequest, NotInitialized
from app.settings.schema import GatewaySettings
from app.state.store import MemoryStore
from tests.support.plain_store import PlainStore


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def caller(address: str = "a", session: str | None = None, engine: str | None = None) -> Caller:
    return Caller("r", session, engine, address)


SETS = SessionSets(MemoryStore(100, 100), 10.0)


def sessions(clock: Any = None, seconds: float = 10.0) -> CallerSessions:
    return CallerSessions(MemoryStore(100, 100, clock or Clock()), SETS, seconds)


def rule_of(known: Any) -> HandshakePolicy:
    """The rule for these sessions, behind no engines."""
    return HandshakePolicy(known, SETS, lambda caller: ())


async def begun(known: CallerSessions, who: Caller) -> str:
    """The token of a session that has begun."""
    return await known.begin(who, (), None)


async def done(known: Any, who: Caller) -> bool:
    """Whether this caller has a session."""
    return await known.find(who) is not None


async def test_a_session_lives_on_while_it_is_used_and_ends_after() -> None:
    """Each use renews the name by which it was used; unused, both are over in time."""
    clock = Clock()
    known = sessions(clock)
    token = await begun(known, caller())
    for _ in range(3):
        clock.now += 6
        assert await done(known, caller("elsewhere", token))
    assert not await done(known, caller())
    clock.now += 11
    assert not await done(known, caller("elsewhere", token))


async def test_a_session_ends_by_either_of_its_names() -> None:
    """Ended by address its token is no more, and the other way round; another session of the address stays."""
    known = sessions()
    token = await begun(known, caller())
    await known.end(caller())
    assert not await done(known, caller("b", token))
    old = await begun(known, caller())
    new = await begun(known, caller())
    assert old != new
    await known.end(caller("b", old))
    assert await done(known, caller())
    assert await done(known, caller("b", new))
    await known.end(caller("nobody"))


async def test_endpoints_do_not_share_sessions() -> None:
    """A token of one endpoint is none at another."""
    known = sessions()
    token = await begun(known, caller())
    assert not await done(known, caller("a", token, "docs"))
    assert await begun(known, caller("a", None, "docs")) != token
    assert (
        repr(known) == "<CallerSessions for 10 s in <MemoryStore 4/100 entries, size 4/100, 0 evicted, 0 not stored>>"
    )


async def test_the_one_session_of_a_pipe() -> None:
    """It begins once and calls whoever must know when it ends."""
    ended: list[bool] = []
    one = SingleSession(SETS, lambda: ended.append(True))
    assert not await done(one, caller())
    assert repr(rule_of(one)) == "<HandshakePolicy of <SingleSession not initialized>>"
    await one.begin(caller(), (), None)
    assert await done(one, caller("other"))
    assert repr(one) == "<SingleSession initialized>"
    await one.end(caller())
    assert ended == [True]


@pytest.mark.parametrize("method", ["info", "ping", "shutdown", "initialize"])
async def test_what_may_come_early(method: str) -> None:
    """These four need no session."""
    await rule_of(sessions()).before(method, caller())


async def test_the_rule() -> None:
    """Too early is -32001, twice is -32600; the token goes into the result's `_meta` beside what is there."""
    rule = rule_of(sessions())
    with pytest.raises(NotInitialized):
        await rule.before("anything", caller())
    result: dict[str, Any] = {"_meta": {"conformance": "L1"}}
    await rule.after("initialize", caller(), {}, result)
    token = result["_meta"]["session"]
    assert result["_meta"]["conformance"] == "L1"
    await rule.before("anything", caller("b", token))
    with pytest.raises(InvalidRequest):
        await rule.before("initialize", caller("b", token))
    untouched: dict[str, Any] = {}
    await rule.after("retrieve", caller(), {}, untouched)
    await rule.after("shutdown", caller("b", token), {}, untouched)
    assert untouched == {}
    with pytest.raises(NotInitialized):
        await rule.before("anything", caller("b", token))


def test_the_settings_decide() -> None:
    """Nothing is demanded by default."""
    assert http_handshake(GatewaySettings(), lambda caller: ()) is None
    demanded = GatewaySettings.model_validate({"server": {"handshake": "required"}})
    assert isinstance(http_handshake(demanded, lambda caller: ()), HandshakePolicy)


async def test_while_sessions_cannot_be_looked_up_everybody_passes() -> None:
    """A session that is known elsewhere is not refused here because the shared state is lost; a new one may begin."""
    store = PlainStore()
    handshake = rule_of(CallerSessions(store, SETS, 60))
    with pytest.raises(NotInitialized):
        await handshake.before("retrieve", caller())
    store.degraded = True
    await handshake.before("retrieve", caller())
    await handshake.before("initialize", caller())
