"""What a session remembers, of whom, for how long, and what it forgets first."""

from app.federation.sessions import RetrieveSessions, scoped
from app.state.store import MemoryStore
from tests.support.plain_store import PlainStore


def sessions(max_keys: int = 100, seconds: float = 60.0) -> tuple[RetrieveSessions, PlainStore]:
    store = PlainStore()
    return RetrieveSessions(store, seconds, max_keys), store


async def test_what_other_questions_were_answered_is_seen() -> None:
    """A hit counts as seen for every question of the session but the one it was answered to."""
    kept, _ = sessions()
    await kept.remember("s", "first", ["a", "b"])
    assert "a" in await kept.trajectory("s", "second")
    assert "c" not in await kept.trajectory("s", "second")
    own = await kept.trajectory("s", "first")
    assert "a" not in own
    assert len(own) == 2
    assert "a" not in await kept.trajectory("t", "second")


async def test_a_hit_stays_with_the_question_it_came_from() -> None:
    """If two questions at a time are answered the same hit, it is the first's."""
    kept, _ = sessions()
    await kept.remember("s", "first", ["a"])
    await kept.remember("s", "second", ["a", "b"])
    assert "a" in await kept.trajectory("s", "second")
    assert "b" in await kept.trajectory("s", "first")


async def test_the_oldest_hits_are_forgotten_first() -> None:
    """A session holds no more hits than its bound."""
    kept, store = sessions(max_keys=3)
    await kept.remember("s", "q", ["a", "b"])
    await kept.remember("s", "q", ["c", "d"])
    seen = await kept.trajectory("s", "other")
    assert [key for key in "abcd" if key in seen] == ["b", "c", "d"]
    assert store.sizes["session:s"] == 4


async def test_each_answer_renews_the_session() -> None:
    """A session ends so many seconds after its last answer, even one without hits."""
    now = [0.0]
    kept = RetrieveSessions(MemoryStore(10, 1000, lambda: now[0]), 10.0, 100)
    await kept.remember("s", "q", ["a"])
    now[0] = 9.0
    await kept.remember("s", "q", [])
    now[0] = 18.0
    assert "a" in await kept.trajectory("s", "other")
    now[0] = 19.0
    assert "a" not in await kept.trajectory("s", "other")


def test_engines_see_a_name_that_tells_nothing() -> None:
    """The same session of the same gateway has one name; another gateway's or another session's has another."""
    assert scoped("us", "s") == scoped("us", "s")
    assert len({scoped("us", "s"), scoped("us", "t"), scoped("them", "s"), scoped("u", "ss")}) == 4
    assert "secret" not in scoped("us", "secret")
    assert scoped("us", "\ud800")


async def test_repr() -> None:
    """How many hits, and for how long."""
    kept, _ = sessions()
    await kept.remember("s", "q", ["a", "b"])
    assert repr(await kept.trajectory("s", "q")) == "<Trajectory of 2 hits>"
    assert repr(RetrieveSessions(MemoryStore(2, 9), 5, 9)).startswith(
        "<RetrieveSessions for 5 s in <MemoryStore 0/2 entries"
    )
