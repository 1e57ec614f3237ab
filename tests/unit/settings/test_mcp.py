"""The section `mcp` of `gateway.yaml`."""

import pytest
from pydantic import ValidationError

from app.settings.mcp import McpSettings
from app.settings.sources import load_settings


def test_lists_can_be_said_in_words() -> None:
    """From the environment: hosts and origins with commas."""
    environ = {
        "RCP_GATEWAY__MCP__ALLOWED_HOSTS": "mcp.test, mcp.test:*,[::1]:80",
        "RCP_GATEWAY__MCP__ALLOWED_ORIGINS": "https://app.test",
        "RCP_GATEWAY__MCP__ENABLED": "true",
    }
    wishes = load_settings(None, environ).mcp
    assert wishes.allowed_hosts == ["mcp.test", "mcp.test:*", "[::1]:80"]
    assert wishes.allowed_origins == ["https://app.test"]
    assert wishes.enabled is True


@pytest.mark.parametrize("host", ["https://mcp.test", "mcp.test/mcp", "a b", "", "u@mcp.test"])
def test_a_host_is_no_url(host: str) -> None:
    """What can be no Host header is refused, with an example."""
    with pytest.raises(ValidationError, match=r"such as gateway\.example\.com or localhost:8080"):
        McpSettings(allowed_hosts=[host])


@pytest.mark.parametrize("origin", ["app.test", "https://app.test/", "http://a/x?y", "ftp://a", "http://[", "*"])
def test_an_origin_is_scheme_and_host(origin: str) -> None:
    """What can be no Origin header is refused, with an example."""
    with pytest.raises(ValidationError, match=r"such as https://app\.example\.com"):
        McpSettings(allowed_origins=[origin])
