"""For all tests: a real Redis, the relay that tests reach it through, and no deadline for examples of hypothesis."""

from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings

from tests.support.redis_server import Relay, redis_server

settings.register_profile("busy machines too", deadline=None)  # which are no fault of the code
settings.load_profile("busy machines too")


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
