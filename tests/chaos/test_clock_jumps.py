"""The clock leaps ahead, as after a machine was asleep: what is told the time by hand takes it, and goes on.

Clocks are handed in, and are monotonic: they may leap ahead by any amount and never go back.
"""

import random
from typing import Any

import pytest

from app.engines.http.client import HttpTransport
from app.settings.schema import EngineEntry, EnginesSettings
from app.state.store import MemoryStore
from tests.support.raw_peer import RawPeer, echo


class LeapingClock:
    """Seconds, and by how much they leap each time that somebody looks."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self._chance = random.Random(seed)

    def __call__(self) -> float:
        if self._chance.random() < 0.3:
            self.now += self._chance.choice((0.001, 1.0, 31.0, 3600.0, 1e6))
        return self.now


@pytest.mark.parametrize("seed", range(3))
async def test_calls_are_answered_whatever_the_clock_does(seed: int) -> None:
    """Connections that are suddenly too old are replaced; every call is answered."""
    async with RawPeer(echo) as peer:
        entry = EngineEntry(id="e", url=peer.url)
        transport = HttpTransport(entry, EnginesSettings(), clock=LeapingClock(seed))
        try:
            for number in range(200):
                assert (await transport.call("echo", {"n": number})).result == {"n": number}
            assert 1 < len(peer.lines) < 200
        finally:
            await transport.close()


def same(value: Any) -> Any:
    """A value as it is."""
    return value


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_kept_stays_within_its_bounds(seed: int) -> None:
    """A store whose clock leaps keeps no more than it may, gives out nothing that is over, and takes new values."""
    clock = LeapingClock(seed)
    store = MemoryStore(20, 100, clock, turnover_seconds=5.0)
    chance = random.Random(seed)
    ends: dict[str, float] = {}
    for _ in range(2000):
        key = f"k{chance.randrange(40)}"
        await store.put(key, key, 30.0, same, size=chance.randint(1, 20))
        ends[key] = clock.now + 30.0
        looked_for = f"k{chance.randrange(40)}"
        before = clock.now
        found = await store.get(looked_for, same)
        assert found is None or (found == looked_for and ends[looked_for] > before)
        assert len(store) <= 20
