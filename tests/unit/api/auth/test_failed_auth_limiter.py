"""How often an address has failed, in a table that stays as large as it is."""

from app.api.auth.authentication import FAILURE_WINDOW, FailedAuthLimiter


def test_failures_of_a_minute() -> None:
    """The first failures are allowed; then the wait is returned, until a minute after the first."""
    now = 100.0
    failed_auth = FailedAuthLimiter(2, 10, lambda: now)
    assert [failed_auth.failed("a") for _ in range(3)] == [0.0, 0.0, FAILURE_WINDOW]
    assert failed_auth.failed("b") == 0.0
    now += FAILURE_WINDOW - 1
    assert failed_auth.failed("a") == 1.0
    now += 1
    assert failed_auth.failed("a") == 0.0


def test_many_addresses() -> None:
    """However many come, no more are remembered than the bound; who fails on is not forgotten."""
    failed_auth = FailedAuthLimiter(1, 1000)
    failed_auth.failed("busy")
    for number in range(200_000):
        failed_auth.failed(f"{number:x}")
        if number % 500 == 0:
            assert failed_auth.failed("busy") > 0
    assert len(failed_auth) == 1000
    assert repr(failed_auth) == "<FailedAuthLimiter 1000/1000 addresses>"
