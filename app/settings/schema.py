"""Every setting and its default: the registry (`rcp.json`, RCP §16.1) and the gateway's own file (`gateway.yaml`).

Pydantic models, strict, unknown keys refused. What a value means is written beside it; how files are read and merged is
`source.py`'s business.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

EngineId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]


class _Registry(BaseModel):
    """camelCase in the file, as in RCP itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)


class _Section(BaseModel):
    """snake_case in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EngineTls(_Registry):
    """TLS towards one engine: paths of PEM files. Without `caFile` the system's authorities are trusted."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> "EngineTls":
        if self.key_file and not self.cert_file:
            raise ValueError("keyFile needs certFile beside it")
        return self


class EngineEntry(_Registry):
    """One engine of the registry: RCP's own keys first, then this gateway's optional ones."""

    id: EngineId
    transport: Literal["http", "stdio"] | None = None
    """Inferred from `url` or `command` when absent."""
    url: str | None = None
    command: Annotated[list[str], Field(min_length=1)] | None = None
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """Share in fusion; 0 means the engine adds nothing to scores."""
    priority: int = 0
    """Higher wins where one engine must be chosen (types, bodies, embedding space)."""
    required: bool = False
    """Its failure fails the whole request with its code."""

    enabled: bool = True
    timeout_ms: int = Field(default=2000, ge=1, le=600_000)
    """Longest one call may take, from DNS to the last byte."""
    max_concurrency: int = Field(default=32, ge=1, le=10_000)
    """Calls under way at once."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with every request; values may hold ${ENV_NAME}."""
    client: Literal["http", "httpx"] = "http"
    """`http`: the fast path. `httpx`: for engines behind a proxy or with HTTP/2."""
    tls: EngineTls | None = None
    id_namespace: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\s:]+$")] | None = None
    """Prefix of this engine's hit ids (`docs` makes 7 `docs:7`), so that unrelated corpora never merge."""
    confidence: Literal["ranked", "independent", "ignore"] = "ranked"
    """How its confidences are read: they follow its ranking (default), they are a judge of their own, or not at all."""

    @field_validator("url")
    @classmethod
    def _http_url(cls, url: str | None) -> str | None:
        if url is None:
            return url
        try:
            parts = urlsplit(url)
            port_fault = parts.port == 0
        except ValueError as fault:
            raise ValueError(f"is not a URL: {fault}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port_fault:
            raise ValueError("must be an http:// or https:// URL with a host, such as http://127.0.0.1:8000/rcp")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not carry credentials; put them in 'headers' with ${ENV_NAME}")
        if parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", url):
            raise ValueError("must have neither a fragment nor spaces")
        return url

    @field_validator("headers")
    @classmethod
    def _header_lines(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"'{name}' is no header name")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"'{name}' is set by the gateway itself")
            if re.search(r"[\r\n\0]", value):
                raise ValueError(f"the value of '{name}' holds a line break")
        return headers

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> "EngineEntry":
        kind = self.transport or ("stdio" if self.command else "http")
        if kind == "http" and not self.url:
            raise ValueError("an http engine needs 'url'")
        if kind == "stdio" and not self.command:
            raise ValueError("a stdio engine needs 'command'")
        if kind == "stdio" and self.url:
            raise ValueError("a stdio engine has no 'url'")
        if kind == "http" and self.command:
            raise ValueError("an http engine has no 'command'")
        return self

    @property
    def kind(self) -> Literal["http", "stdio"]:
        """How the engine is reached."""
        return "stdio" if self.command else "http"


_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "accept", "accept-encoding", "te"}
    | {"upgrade", "keep-alive", "proxy-connection", "trailer", "expect"}
)


class Registry(_Registry):
    """`config/rcp.json`: the engines behind this gateway."""

    engines: list[EngineEntry]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "Registry":
        seen: dict[str, int] = {}
        for index, entry in enumerate(self.engines):
            if entry.id in seen:
                raise ValueError(f"engines[{index}].id '{entry.id}' is already the id of engines[{seen[entry.id]}]")
            seen[entry.id] = index
        return self


class ServerSettings(_Section):
    """The door."""

    name: str = Field(default="rcp-gateway", min_length=1, max_length=128)
    """`server.name` in the advertisement."""
    id: str | None = Field(default=None, min_length=1, max_length=128)
    """Our identity in `_meta.federation.path`; by default the name plus a short hash of the registry."""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=256)
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """A larger request is answered 413 with -32013."""
    max_batch: int = Field(default=50, ge=1, le=10_000)
    """Members of one JSON-RPC batch; more are refused with -32602."""
    keep_alive_seconds: int = Field(default=75, ge=1)
    """Longer than the idle time of the load balancer in front."""


class RetrieveSettings(_Section):
    """How one question becomes many, and many answers one."""

    deadline_ms: int = Field(default=10_000, ge=1, le=600_000)
    """Longest a request may take; `_meta.deadlineMs` may only shorten it."""
    reserve_ms: int = Field(default=100, ge=0, le=10_000)
    """Kept from every engine's budget for fusing and writing (at most a fifth of what remains)."""
    max_k: int = Field(default=200, ge=1, le=10_000)
    """Largest `k` advertised and served."""
    overfetch: float = Field(default=2.0, ge=1, le=100)
    """Each engine is asked for `k` times this …"""
    window_min: int = Field(default=20, ge=1, le=10_000)
    """… and never for fewer than this, clamped to its `maxK`."""


class FusionSettings(_Section):
    """The default blend; a request may choose another."""

    method: Literal["rrf", "weighted", "convex"] = "rrf"
    rrf_k: int = Field(default=60, ge=1, le=100_000)
    confidence_weight: float = Field(default=0.8, ge=0, le=1)
    """How much the engines' confidences temper RRF; 0 is plain RRF."""


class FederationSettings(_Section):
    """Stacked gateways (RCP §16)."""

    depth: int = Field(default=3, ge=0, le=32)
    """Levels of aggregators below us when the caller does not say, and the most it may say."""


class EnginesSettings(_Section):
    """Bounds that hold for every engine."""

    max_response_bytes: int = Field(default=16_777_216, ge=1024)
    """A longer answer (decoded) is cut off and fails as `too_large`."""
    idle_seconds: float = Field(default=30.0, gt=0)
    """A pooled connection unused for longer is closed."""
    max_connection_age_seconds: float = Field(default=300.0, gt=0)
    """A connection older than this is not used again, so that DNS changes are followed."""
    health_interval_seconds: float = Field(default=15.0, gt=0)
    """Between two health checks of an engine that is up (jittered)."""
    reconnect_max_seconds: float = Field(default=5.0, gt=0)
    """Longest pause between two handshake attempts with an engine that is down."""


class LogSettings(_Section):
    """The log on stderr."""

    format: Literal["json", "console"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


class GatewaySettings(_Section):
    """`config/gateway.yaml`: everything but the engines."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    retrieve: RetrieveSettings = Field(default_factory=RetrieveSettings)
    fusion: FusionSettings = Field(default_factory=FusionSettings)
    federation: FederationSettings = Field(default_factory=FederationSettings)
    engines: EnginesSettings = Field(default_factory=EnginesSettings)
    log: LogSettings = Field(default_factory=LogSettings)


def file_name(model: type[BaseModel], field: str) -> str:
    """The key of `field` as it is written in the file."""
    info: Any = model.model_fields[field]
    return info.alias or field
