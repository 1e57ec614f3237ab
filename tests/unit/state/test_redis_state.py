"""What opens stores and limiters: alone, or over one link."""

from time import monotonic

from app.settings.state import StateSettings
from app.state.rate_limit import Window
from app.state.redis_store import RedisState
from app.state.store import IN_MEMORY, MemoryStore, StateBackend
from tests.support.redis_server import Relay
from tests.support.running_gateway import until
from tests.support.shared_state import Watched, unique


async def test_alone_a_store_is_the_one_in_memory() -> None:
    """Nothing is wrapped, nothing is reached, nothing is degraded."""
    backend: StateBackend = IN_MEMORY
    local = MemoryStore(1, 1)
    await backend.start()
    assert backend.store("pages", local, constant=True, max_bytes=1) is local
    assert not backend.degraded
    assert repr(backend.limiter(7, monotonic)) == "<LocalLimiter 0/7>"
    assert repr(backend) == "<InMemoryState>"
    await backend.close()


async def test_shared_all_are_over_one_link(relay: Relay) -> None:
    """Stores and limiters are degraded together, and tell where they keep what they keep."""
    prefix, identity = unique(), ["gateway-1"]
    wishes = StateSettings(url=relay.url, prefix=prefix, timeout_ms=10_000, connections=3)
    backend = RedisState(wishes, "gateway", lambda: identity[0], Watched().metrics)
    store = backend.store("pages", MemoryStore(10, 10))
    limiter = backend.limiter(7, monotonic)
    await backend.start()
    try:
        assert repr(backend) == f"<RedisState {prefix}:gateway-1, <RedisConnection up, lost 0 times>>"
        await store.put("k", 1, 60, int)
        await limiter.take("n", Window(2, 60), 1)
        written = sorted(await backend._link.ask(lambda redis: redis.keys(f"{prefix}:gateway*")))
        counted = [f"{prefix}:gateway:limits:n:{each}".encode() for each in ("times", "total")]
        assert written == [f"{prefix}:gateway-1:pages:k".encode(), *counted]
        identity[0] = "gateway-2"
        assert await store.get("k", int) is None
        await relay.cut()
        assert await limiter.take("n", Window(2, 60), 2) == 0
        assert (backend.degraded, store.degraded) == (True, True)
        await relay.start()
        await until(lambda: not backend.degraded)
        assert await limiter.take("n", Window(2, 60), 2) > 0
    finally:
        await backend.close()
