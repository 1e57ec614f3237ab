"""Which Host headers fit a list of names."""

from typing import Any

import pytest

from app.api.allowed_hosts import AllowedHosts


async def nobody(*_: Any) -> None:
    """An application that is never asked."""


NAMES = AllowedHosts(nobody, ["rcp.example", "other.example:8080", "::1", "[fd00::1]:9"])


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        ([b"rcp.example"], True),
        ([b"RCP.EXAMPLE.:1"], True),
        ([b"other.example:8080"], True),
        ([b"other.example"], False),
        ([b"[::1]:80"], True),
        ([b"[fd00::1]:9"], True),
        ([b"[fd00::1]"], False),
        ([b"rcp.example", b"rcp.example"], False),
        ([], False),
        ([b"\xff"], False),
        ([b"rcp.example\xa0"], False),
        ([b"x" * 100_000], False),
    ],
)
def test_what_fits(hosts: list[bytes], allowed: bool) -> None:
    """Exactly one Host, in any case, with any port unless one is listed."""
    assert NAMES.allows([(b"accept", b"x"), *((b"host", host) for host in hosts)]) is allowed


def test_it_says_what_it_lets_through() -> None:
    """For an incident: the names."""
    assert repr(NAMES) == "<AllowedHosts of [::1], [fd00::1]:9, other.example:8080, rcp.example>"


async def test_what_is_no_request_goes_through() -> None:
    """The start and the end of the application are nobody's host."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await AllowedHosts(app, ["x"])({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
