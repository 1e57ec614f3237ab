"""Host and Origin headers: which requests are served, and how others are refused."""

import pytest

from app.api.allowed_hosts import McpHostPolicy
from app.settings.mcp import McpSettings

DEFAULT = McpHostPolicy(McpSettings(), "https://Gateway.test:8443/base")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]", "[::1]:80", "gateway.test:8443", "Gateway.Test:8443"]
)
def test_listed_hosts_are_served(host: str) -> None:
    """Loopback with any port, and the public name as it is; letters' case does not matter."""
    assert DEFAULT.refusal([(b"host", host.encode())]) is None


@pytest.mark.parametrize("host", ["", "gateway.test", "localhost:", "localhost:x", "localhost.evil", "evil:80", "::1"])
def test_other_hosts_are_421(host: str) -> None:
    """Everything else is refused, with the setting's name and not more of the header than is sane."""
    refusal = DEFAULT.refusal([(b"host", host.encode())])
    assert refusal is not None
    status, fault = refusal
    assert (status, fault.data["field"]) == (421, "Host")
    assert "mcp.allowed_hosts" in fault.message
    long = DEFAULT.refusal([(b"host", b"x" * 5000)])
    assert long is not None
    assert len(long[1].message) < 300


def test_origins_are_checked_where_there_are_any() -> None:
    """A page of loopback is served, another is 403."""
    host = (b"host", b"localhost")
    assert DEFAULT.refusal([host, (b"origin", b"http://localhost:6274")]) is None
    refusal = DEFAULT.refusal([host, (b"origin", b"null")])
    assert refusal is not None
    assert refusal[0] == 403


def test_the_lists_can_be_looked_at() -> None:
    """The description names what is served."""
    assert (
        repr(McpHostPolicy(McpSettings(allowed_hosts=["a", "b:*"], allowed_origins=[])))
        == "<McpHostPolicy a, b:*, origins none>"
    )


@pytest.mark.parametrize(
    ("host", "served"),
    [("rcp.test", True), ("rcp.test:99", True), ("other:80", True), ("other", False), ("[2001:db8::1]:5", True)],
)
def test_names_of_the_whole_gateway_are_served(host: str, served: bool) -> None:
    """`server.allowed_hosts` need not be listed again: there a name without a port means any."""
    hosts = McpHostPolicy(McpSettings(), None, ["rcp.test", "other:80", "2001:db8::1"])
    assert (hosts.refusal([(b"host", host.encode())]) is None) == served


def test_pages_that_may_ask_everywhere_may_ask_here() -> None:
    """`server.cors_origins` need not be listed again."""
    hosts = McpHostPolicy(McpSettings(allowed_origins=[]), pages=["https://app.example"])
    assert hosts.refusal([(b"host", b"localhost"), (b"origin", b"https://app.example")]) is None
    assert hosts.refusal([(b"host", b"localhost"), (b"origin", b"https://app.example:444")]) is not None
