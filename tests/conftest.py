"""Fixtures of all tests: a real Redis, and the relay that tests reach it through."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.redis_server import Relay, redis_server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Where a real Redis is."""
    with redis_server() as url:
        yield url


@pytest.fixture
async def relay(redis_url: str) -> AsyncIterator[Relay]:
    """A relay in front of Redis that can be frozen and cut."""
    relay = await Relay(redis_url).start()
    yield relay
    relay.thaw()
    await relay.cut()
