"""Whose address it is, behind proxies that are trusted and before those that are not."""

from typing import Any

import pytest

from app.api.auth.client_address import UNKNOWN, ClientAddress


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    """A request as the server describes it."""
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return {"client": None if peer is None else (peer, 1), "headers": headers}


TRUSTED = ["10.0.0.0/8", "fd00::/8", "192.0.2.7"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("1.2.3.4", ["9.9.9.9"], "1.2.3.4"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6, 9.9.9.9, 10.2.2.2,192.0.2.7"], "9.9.9.9"),
        ("10.0.0.1", ["6.6.6.6", "9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9, , 10.2.2.2"], "10.2.2.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["9.9.9.9:443"], "9.9.9.9"),
        ("10.0.0.1", ["[2001:db8:1:2:3::4]:443"], "2001:db8:1:2::"),
        ("fd00::1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::"),
        ("::ffff:10.0.0.1", ["9.9.9.9"], "9.9.9.9"),
        ("2001:db8:1:2:aaaa::1", [], "2001:db8:1:2::"),
        ("10.0.0.1", ["9" * 10_000], "10.0.0.1"),
        ("10.0.0.1", [", ".join(["9.9.9.9"] + ["10.3.3.3"] * 50)], "10.3.3.3"),
        ("10.0.0.1", ["\xff\xfe"], "10.0.0.1"),
        (None, ["9.9.9.9"], UNKNOWN),
        ("nonsense", ["9.9.9.9"], UNKNOWN),
    ],
)
def test_the_right_most_that_is_not_trusted(peer: str | None, forwarded: list[str], expected: str) -> None:
    """Only a trusted peer's header counts, read from the right; what is no address ends the walk."""
    assert ClientAddress(TRUSTED).address(scope(peer, *forwarded)) == expected


def test_nobody_is_trusted_by_default() -> None:
    """Without proxies the header is never read."""
    origin = ClientAddress([])
    assert origin.address(scope("10.0.0.1", "9.9.9.9")) == "10.0.0.1"
    assert repr(origin) == "<ClientAddress behind no proxy>"
    assert repr(ClientAddress(["10.0.0.1"])) == "<ClientAddress behind 10.0.0.1/32>"
