"""What tenants have reported: each for itself, for a time, and only so much."""

from app.federation.sessions import PoisonReports
from app.state.store import MemoryStore


async def test_reports_are_kept_for_a_time() -> None:
    """A report renews the time of those before it; other tenants have none of it."""
    now = 0.0
    suspicions = PoisonReports(MemoryStore(10, 100, lambda: now), 60, 3)
    await suspicions.report("a:", ["1", "2"])
    now = 50.0
    await suspicions.report("a:", ["3"])
    now = 100.0
    assert set(await suspicions.load("a:")) == {"1", "2", "3"}  # type: ignore[call-overload]
    assert "1" not in await suspicions.load("b:")
    now = 110.0
    assert "1" not in await suspicions.load("a:")
    assert repr(suspicions).startswith("<PoisonReports for 60 s in <MemoryStore")


async def test_the_oldest_go_first() -> None:
    """Of too many, those that were reported first are forgotten; what was handed out before stays as it was."""
    suspicions = PoisonReports(MemoryStore(10, 100), 60, 3)
    await suspicions.report("a:", ["1", "2", "3"])
    before = await suspicions.load("a:")
    await suspicions.report("a:", ["4"])
    assert [number in await suspicions.load("a:") for number in "1234"] == [False, True, True, True]
    assert "1" in before
