"""Where the state is kept, as the settings say it."""

import pytest
from pydantic import ValidationError

from app.settings.state import StateSettings


@pytest.mark.parametrize(
    "url",
    ["redis://h", "redis://user:pw@h:6380/3", "rediss://h/0", "unix:///run/redis.sock?db=2", "redis://[::1]:6379"],
)
def test_a_redis_is_shared(url: str) -> None:
    """Every form in which a Redis is written."""
    assert StateSettings(url=url).shared


def test_memory_is_not_shared() -> None:
    """By default each process keeps its own."""
    assert not StateSettings().shared


@pytest.mark.parametrize(
    "url", ["", "h:6379", "http://h", "redis://", "redis:///0", "memory://x", "unix://", "redis://h:x"]
)
def test_anything_else_is_a_fault_that_says_what_to_write(url: str) -> None:
    """A URL of nothing that can be reached is refused, and the message has no part of it: it may hold a password."""
    with pytest.raises(ValidationError) as caught:
        StateSettings(url=url)
    (fault,) = caught.value.errors(include_input=False)
    assert "redis://" in fault["msg"] or "port" in fault["msg"]


@pytest.mark.parametrize("prefix", ["", "a b", "a:b", "x" * 65, "ü"])
def test_a_prefix_is_a_word(prefix: str) -> None:
    """What keys begin with cannot be mistaken for what follows."""
    with pytest.raises(ValidationError):
        StateSettings(prefix=prefix)
