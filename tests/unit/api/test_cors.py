"""Headers for browsers: which other sites may call, and what our own pages may do."""

from typing import Any

from app.api.cors import PAGE_HEADERS, CorsPolicy


async def nobody(*_: Any) -> None:
    """An application that is never asked."""


def test_pages_of_ours_are_held_tightly() -> None:
    """Scripts from here alone and none written into a page, no frame around it, no type guessed, no address told on."""
    policy = PAGE_HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert PAGE_HEADERS["x-content-type-options"] == "nosniff"
    assert PAGE_HEADERS["referrer-policy"] == "no-referrer"
    assert all(name == name.lower() for name in PAGE_HEADERS)


def test_it_says_whom_it_opens_to() -> None:
    """For an incident: the origins."""
    assert repr(CorsPolicy(nobody, ["https://a", "https://b"])) == "<CorsPolicy https://a, https://b>"
