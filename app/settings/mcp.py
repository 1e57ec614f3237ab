"""The section `mcp` of `gateway.yaml`: the endpoint for MCP clients."""

import re
from typing import Annotated, Literal
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


def _prefix(text: str) -> str:
    # Clients accept these characters only, and at most 64 of them for a whole name.
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,40}", text):
        raise ValueError("must contain only letters, digits, _ and -, at most 40 of them")
    return text


def _about(text: str) -> str:
    # It is in two descriptions, and models read all descriptions each time.
    if len(text.encode("utf-8", "replace")) > 1000:
        raise ValueError("must be at most 1000 bytes (UTF-8)")
    return text


Title = Annotated[str, Field(min_length=1, max_length=100)]
About = Annotated[str, AfterValidator(_about)]
Prefix = Annotated[str, AfterValidator(_prefix)]


class McpEntry(Section):
    """How the gateway presents itself to the MCP clients of one tenant. Absent keys are taken from the section `mcp`
    of gateway.yaml."""

    title: Title | None = None
    """Overrides `mcp.title`."""
    about: About | None = None
    """Overrides `mcp.about`."""
    tool_prefix: Prefix | None = None
    """Overrides `mcp.tool_prefix`."""


class McpSettings(Section):
    """`POST /mcp` and `rcp-gateway mcp`."""

    enabled: bool | None = None
    """Whether `/mcp` is served. Default: true."""
    title: Title = "RCP gateway"
    """Name of the server that MCP clients show to their users."""
    about: About = ""
    """What the engines contain and when to search them, in one to three sentences. It is placed before the
    descriptions of `retrieve` and `search` and before the instructions for the model. At most 1000 bytes (UTF-8)."""
    tool_prefix: Prefix = ""
    """Placed before the name of every tool, such as `docs_`, so that several gateways can be used by one client."""
    result: Literal["both", "text", "structured"] = "both"
    """What a tool result contains: a text for the model, `structuredContent`, or both. Some clients pass only one of
    them on to the model."""
    allowed_hosts: Annotated[list[Annotated[str, AfterValidator(_host)]], BeforeValidator(words)] = Field(
        default=[name + port for name in LOOPBACK for port in ("", ":*")], min_length=1
    )
    """Accepted Host headers, in addition to those of `server`. `:*` allows any port. Others get 421."""
    allowed_origins: Annotated[list[Annotated[str, AfterValidator(_origin)]], BeforeValidator(words)] = Field(
        default=[f"http://{name}{port}" for name in LOOPBACK for port in ("", ":*")]
    )
    """Accepted Origin headers, in addition to `server.cors_origins`. Others get 403. Requests without Origin, as from
    clients that are no browsers, are accepted."""
    max_text_bytes: int = Field(default=32_768, ge=256, le=16_777_216)
    """Maximum bytes (UTF-8) of all texts in one response. Longer texts are truncated and marked."""
    max_fetch_bytes: int = Field(default=262_144, ge=256, le=16_777_216)
    """Maximum bytes of the text that `fetch` returns. A longer text is truncated and marked."""
    fetch_ttl_seconds: int = Field(default=1800, ge=1, le=604_800)
    """How long the hits of an answer are kept for `fetch`. Afterwards `fetch` asks the engine again."""
    max_kept_hits: int = Field(default=20_000, ge=0)
    """Maximum hits kept for `fetch`; a long hit counts once per KiB. Beyond this limit, the least recently used are
    evicted."""
