"""The door for MCP clients, as the operator wishes it: the section `mcp` of `gateway.yaml`.

It refuses to know the protocol; whether what the door needs is installed is the composition root's business.
"""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from app.settings.fields import Section, words

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def _host(text: str) -> str:
    name, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if "/" in text or "@" in text or not (name or port) or any(char.isspace() for char in text):
        raise ValueError("must be a Host header, such as gateway.example.com or localhost:8080; :* allows any port")
    return text


def _origin(text: str) -> str:
    try:
        parts = urlsplit(text.removesuffix(":*"))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path + parts.query == ""
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must be an origin, such as https://app.example.com; :* at its end allows any port")
    return text


class McpSettings(Section):
    """`POST /mcp`."""

    enabled: bool | None = None
    """Whether there is such a door. By default there is one where the extra `mcp` is installed, which is loaded once
    somebody comes; `true`: from the start."""
    allowed_hosts: Annotated[list[Annotated[str, AfterValidator(_host)]], BeforeValidator(words)] = Field(
        default=[name + port for name in LOOPBACK for port in ("", ":*")], min_length=1
    )
    """Host headers that are served, besides those of `server`; `:*` allows any port. Any other: 421."""
    allowed_origins: Annotated[list[Annotated[str, AfterValidator(_origin)]], BeforeValidator(words)] = Field(
        default=[f"http://{name}{port}" for name in LOOPBACK for port in ("", ":*")]
    )
    """Origin headers that are served, besides `server.cors_origins`; any other is answered 403. What is no browser
    sends none, and is served."""
    max_text_bytes: int = Field(default=32_768, ge=256, le=16_777_216)
    """Bytes (UTF-8) of all texts of one answer; longer ones are cut, and marked."""
    max_fetch_bytes: int = Field(default=262_144, ge=256, le=16_777_216)
    """Bytes of the one text that `fetch` gives; a longer one is cut, and marked."""
    fetch_ttl_seconds: int = Field(default=1800, ge=1, le=604_800)
    """How long a hit can be fetched after it was last answered."""
    max_kept_hits: int = Field(default=20_000, ge=0)
    """Hits kept for `fetch`, a long one counted as one for each KiB; of more, the least recently used go first."""
