"""How often an address has failed, in a table that stays as large as it is."""

from app.api.auth.failed_attempts import WINDOW, FailedAuthLimiter


def test_failures_of_a_minute() -> None:
    """So many are in order; then the wait is told, until the minute since the first is over."""
    now = 100.0
    strangers = FailedAuthLimiter(2, 10, lambda: now)
    assert [strangers.failed("a") for _ in range(3)] == [0.0, 0.0, WINDOW]
    assert strangers.failed("b") == 0.0
    now += WINDOW - 1
    assert strangers.failed("a") == 1.0
    now += 1
    assert strangers.failed("a") == 0.0


def test_many_addresses() -> None:
    """However many come, no more are remembered than the bound; who fails on is not forgotten."""
    strangers = FailedAuthLimiter(1, 1000)
    strangers.failed("busy")
    for number in range(200_000):
        strangers.failed(f"{number:x}")
        if number % 500 == 0:
            assert strangers.failed("busy") > 0
    assert len(strangers) == 1000
    assert repr(strangers) == "<Strangers 1000/1000 addresses>"
