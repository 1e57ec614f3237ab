"""Every setting and its default: the registry (`rcp.json`, RCP §16.1) and the gateway's own file (`gateway.yaml`).

Pydantic models, strict, unknown keys refused. What a value means is written beside it; how files are read and merged is
`source.py`'s business.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from app.settings.auth import AuthSettings, JwtSettings, MetricsSettings, check_together
from app.settings.engine_parts import EngineBreaker, EngineTls
from app.settings.field_types import EngineId, EngineUrl, HeaderName, HeaderValue, Host, Namespace, Network, address_of
from app.settings.mcp import McpSettings
from app.settings.screen import ScreenSettings
from app.settings.section import MisplacedKey, words
from app.settings.section import RegistrySection as _Registry
from app.settings.section import Section as _Section
from app.settings.server_security import ServerTls, WebOrigin
from app.settings.state import StateSettings
from app.settings.traces import TracesSettings


class EngineEntry(_Registry):
    """One engine of the registry: RCP's own keys first, then this gateway's optional ones."""

    id: EngineId
    """Letters, digits and `. _ / -`, the first a letter or digit; unique. Names it in reports,
    weights, metrics and logs."""
    transport: Literal["http", "stdio"] | None = None
    """Inferred from `url` or `command` when absent."""
    url: EngineUrl | None = None
    """Of an HTTP engine: `http://` or `https://`, with a host, without credentials and fragment."""
    replicas: Annotated[list[EngineUrl], Field(max_length=32)] = Field(default_factory=list)
    """Further URLs of the same engine, all with the same index; calls are spread over `url` and these."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Of a stdio engine: the program and its arguments."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """Share in fusion; 0 means the engine adds nothing to scores."""
    priority: int = 0
    """Higher wins where one engine must be chosen (types, bodies, embedding space)."""
    required: bool = False
    """Its failure fails the whole request with its code."""
    writer: bool = False
    """Where several engines can be written to, or keep memories: `index/add` and `memory/build` go to this one if the
    call names none. Without such an engine the one of the highest `priority` is taken."""

    enabled: bool = True
    """False: known, reported as `disabled`, never asked."""
    timeout_ms: int = Field(default=2000, ge=1, le=600_000)
    """Longest one call may take, from DNS to the last byte."""
    max_concurrency: int = Field(default=32, ge=1, le=10_000)
    """Calls under way at once, in each worker."""
    max_waiting: int | None = Field(default=None, ge=0, le=100_000)
    """Calls that may wait for one of these places; by default eight for each. More fail at once as `overloaded`."""
    retries: int = Field(default=1, ge=0, le=5)
    """How often an idempotent call that failed in a way worth it is made again, in time and within the retry budget."""
    attempt_timeout_ms: int | None = Field(default=None, ge=1, le=600_000)
    """Longest one attempt of a call may take; by default as long as the call."""
    hedge: bool = False
    """Ask a second replica when the first has not answered within the time that 95 % of calls take."""
    health_check: bool = True
    """Whether it is pinged; without, only calls tell whether it is there."""
    breaker: EngineBreaker | None = None
    """Its own rules, where they differ from those in the section `engines`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """Sent with every request to this engine; not for stdio. Values may hold `${ENV_NAME}`."""
    client: Literal["http", "httpx"] = "http"
    """`http`: HTTP/1.1. `httpx`: HTTP/2 if the engine offers it over TLS and the extra `http2` is installed, otherwise
    HTTP/1.1. Neither goes through a proxy, whatever the environment names."""
    tls: EngineTls | None = None
    """Towards an `https://` engine."""
    id_namespace: Namespace | None = None
    """Prefix of this engine's hit ids (`docs` makes 7 `docs:7`), so that unrelated corpora never merge."""
    confidence: Literal["ranked", "independent", "ignore"] = "ranked"
    """How its confidences are read: they follow its ranking (default), they are a judge of their own, or not at all:
    docs/fusion.md."""
    discover: bool = False
    """It is a gateway: those of its engines that it lists with an endpoint on an allowed host are asked directly:
    docs/doors.md."""
    discover_hosts: list[Host] = Field(default_factory=list)
    """Hosts beside its own on which its engines may be, as `host` (any port) or `host:port`."""
    max_trust: Literal["trusted", "community", "untrusted"] | None = None
    """The highest `trust.level` its hits may have; a higher one is lowered."""

    @field_validator("command")
    @classmethod
    def _program_line(cls, command: list[str] | None) -> list[str] | None:
        if command is not None and not command[0]:
            raise MisplacedKey("must name a program", 0)
        return command

    @field_validator("headers")
    @classmethod
    def _names_differ(cls, headers: dict[str, str]) -> dict[str, str]:
        seen: dict[str, str] = {}
        for name in headers:
            if name.lower() in seen:
                raise MisplacedKey(f"is the same header as '{seen[name.lower()]}'", name)
            seen[name.lower()] = name
        return headers

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> "EngineEntry":
        kind = self.transport or ("stdio" if self.command else "http")
        if kind == "http" and not self.url:
            raise ValueError("an http engine needs 'url'" if self.transport else "needs 'url' or 'command'")
        if kind == "stdio" and not self.command:
            raise ValueError("a stdio engine needs 'command'")
        if kind == "stdio" and self.url:
            raise MisplacedKey("a stdio engine has no 'url'", "url")
        if kind == "http" and self.command:
            raise MisplacedKey("an http engine has no 'command'", "command")
        if kind == "stdio" and self.headers:
            raise MisplacedKey("a stdio engine has no headers", "headers")
        if kind == "stdio" and self.replicas:
            raise MisplacedKey("a stdio engine has none", "replicas")
        return self

    @model_validator(mode="after")
    def _its_urls_fit(self) -> "EngineEntry":
        for place, url in enumerate(self.replicas):
            if url in self.urls[: place + 1]:
                raise MisplacedKey("is an address of this engine already", "replicas", place)
        if self.tls and not all(url.startswith("https://") for url in self.urls):
            raise MisplacedKey("needs an https:// URL" if not self.replicas else "needs https:// URLs only", "tls")
        if self.hedge and not self.replicas:
            raise MisplacedKey("needs 'replicas' beside it: a second attempt goes to another one", "hedge")
        return self

    @model_validator(mode="after")
    def _hosts_are_for_discovery(self) -> "EngineEntry":
        if self.discover_hosts and not self.discover:
            raise MisplacedKey("is of no use without 'discover'", "discoverHosts")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Every address of an http engine."""
        return (self.url, *self.replicas) if self.url else ()

    @property
    def kind(self) -> Literal["http", "stdio"]:
        """How the engine is reached."""
        return "stdio" if self.command else "http"


class Registry(_Registry):
    """`config/rcp.json`: the engines behind this gateway."""

    engines: list[EngineEntry]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "Registry":
        seen: dict[str, int] = {}
        for index, entry in enumerate(self.engines):
            if entry.id in seen:
                raise MisplacedKey(
                    f"'{entry.id}' is already the id of engines[{seen[entry.id]}]", "engines", index, "id"
                )
            seen[entry.id] = index
        return self


def twins(entries: Iterable[EngineEntry]) -> list[tuple[str, str]]:
    """Pairs of enabled engines that are one and the same: they share an address or a command.

    Fusion counts twice what such an engine returns.
    """
    seen: dict[object, str] = {}
    pairs: dict[tuple[str, str], None] = {}
    for entry in entries:
        if entry.enabled:
            for place in (*map(_same_address, entry.urls), *([tuple(entry.command)] if entry.command else [])):
                first = seen.setdefault(place, entry.id)
                if first != entry.id:
                    pairs[first, entry.id] = None
    return list(pairs)


def _same_address(url: str) -> tuple[object, ...]:
    """Equal for URLs that lead to the same place, however they are written."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
    return parts.scheme.lower(), (parts.hostname or "").rstrip("."), port, parts.path.rstrip("/"), parts.query


class ServerSettings(_Section):
    """The door."""

    name: str = Field(default="rcp-gateway", min_length=1, max_length=128)
    """`server.name` in the advertisement."""
    id: str | None = Field(default=None, min_length=1, max_length=128)
    """Our identity in `_meta.federation.path`; by default the name plus a short hash of the registry."""
    host: str = "127.0.0.1"
    """Address to listen on; `--host` overrides it."""
    port: int = Field(default=8080, ge=0, le=65535)
    """0 takes any free one; `--port` overrides it."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes behind one address. They share `/metrics` and what `state.url` names: each has its own connections,
    bounds and view of the engines, and else knows only its own cursors, sessions and requests that can be cancelled."""
    worker_timeout_seconds: float = Field(default=30.0, ge=0, le=3600)
    """A worker whose loop has not turned for so long is killed, and another takes its place. 0: never. One process
    alone is left to whoever asks `/livez`."""
    public_url: str | None = Field(default=None, max_length=2048)
    """Where callers reach this gateway, such as `https://rcp.example`: engines are then listed with their endpoints
    (docs/doors.md)."""
    handshake: Literal["optional", "required"] = "optional"
    """`optional`: every HTTP request counts as initialized. `required`: -32001 until the caller has initialized."""
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """A larger request is answered 413 with -32013."""
    max_line_bytes: int = Field(default=16_777_216, ge=1024)
    """Over stdio: a longer line is answered with -32013."""
    max_batch: int = Field(default=50, ge=1, le=10_000)
    """Members of one JSON-RPC batch; more are refused with -32602."""
    keep_alive_seconds: int = Field(default=75, ge=1)
    """Longer than the idle time of the load balancer in front."""
    sse_comment_seconds: float = Field(default=15.0, gt=0, le=3600)
    """Without a frame for so long, an event stream carries a comment, so that nobody in between ends it."""
    send_timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """A caller that makes no room for the next frame of its event stream, or does not read its answer, for so long is
    cut off."""
    trusted_proxies: Annotated[list[Network], BeforeValidator(words)] = Field(default_factory=list)
    """Addresses or networks whose X-Forwarded-For is believed; from anybody else it is ignored."""
    message_timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """A connection on which a request has begun and not come to its end for so long is cut off, answered 408."""
    max_in_flight: int = Field(default=256, ge=1, le=100_000)
    """Requests under way at once, members of batches counted one by one; more wait, and then are refused with 503."""
    max_waiting: int = Field(default=64, ge=0, le=100_000)
    """Requests that may wait to be taken on …"""
    max_wait_ms: int = Field(default=100, ge=0, le=60_000)
    """… and milliseconds each of them does; its deadline counts from its arrival."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Connections of callers at once; on more only the probes are answered. Never more than leaves some of the
    process's file descriptors for engines."""
    max_connections_per_address: int | None = Field(default=None, ge=0, le=1_000_000)
    """Connections of one client address at once; on more only the probes are answered. By default three quarters of
    `max_connections`, if that is at least 64; 0: no bound. Addresses in `trusted_proxies` have none."""
    drain_seconds: float = Field(default=10.0, ge=0, le=3600)
    """After SIGTERM requests are still served for so long, while `/readyz` says 503: the balancer has time to look."""
    grace_seconds: float = Field(default=20.0, ge=0, le=3600)
    """Then requests under way have so long to end before they are cut off. Orchestrators must wait for longer than
    both together before they kill."""
    reload_seconds: float = Field(default=2.0, ge=0, le=3600)
    """Between two looks at the registry and the settings file; what changed is taken over. 0: only on SIGHUP."""
    allowed_hosts: Annotated[list[Host], BeforeValidator(words)] = Field(default_factory=list)
    """Names that callers may use, as `host` (any port) or `host:port`; another `Host` is answered 421. Empty: any."""
    cors_origins: Annotated[list[WebOrigin], BeforeValidator(words)] = Field(default_factory=list)
    """Origins of web pages whose scripts may speak RCP and MCP here (CORS), written out; empty: none."""
    docs: bool = True
    """Serve `/openapi.json` and `/docs`, which describe the methods and endpoints to anybody. Read at start."""
    tls: ServerTls | None = None
    """Serve HTTPS; absent: HTTP, for a machine of its own or with TLS in front. `certFile` and so on, as towards
    engines, will do as well."""

    @field_validator("public_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is None:
            return url
        if "?" in url or "@" in url:
            raise ValueError("must have neither a query nor credentials, for it is shown to every caller")
        return address_of(url, "https://rcp.example").rstrip("/")


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
    identity: Literal["id", "uri", "content"] = "id"
    """Which hits are one document: by id, by normalised `citation.uri`, or by a hash of the normalised text:
    docs/fusion.md."""
    quorum: float = Field(default=0.0, ge=0, le=1)
    """Tail cut: once engines with this share of the weight have answered, and every required one, …"""
    grace_ms: int = Field(default=100, ge=0, le=600_000)
    """… the others are waited for so long and no longer, and noted as `late`. At `quorum` 0 all are waited for."""
    rerank_union: bool = True
    """Whether a `rerank` that no retrieving engine can do is done to the fused list, by an engine that offers it."""


class FusionSettings(_Section):
    """The default blend; a request may choose another."""

    method: Literal["rrf", "weighted", "convex"] = "rrf"
    """The blend of requests that name none: docs/fusion.md."""
    rrf_k: int = Field(default=60, ge=1, le=100_000)
    """The larger, the less the first ranks stand out."""
    confidence_weight: float = Field(default=0.8, ge=0, le=1)
    """How much the engines' confidences temper RRF; 0 is plain RRF."""


class IndexSettings(_Section):
    """Writing into engines' indexes (RCP §7.10, §7.11)."""

    enabled: bool = False
    """Whether `index/add` and `index/delete` are advertised and sent to engines; else they are -32003:
    docs/methods.md."""


class FederationSettings(_Section):
    """Stacked gateways (RCP §16)."""

    depth: int = Field(default=3, ge=0, le=32)
    """Depth of a request that states none, and the most it may state. Each gateway takes one, and one that receives
    1 or less asks nobody."""


class EnginesSettings(_Section):
    """Bounds that hold for every engine."""

    max_response_bytes: int = Field(default=16_777_216, ge=1024)
    """A longer answer (decoded) is cut off and fails as `too_large`."""
    max_held_bytes: int = Field(default=100_663_296, ge=1_048_576)
    """Bytes of engines' answers that all requests of a process hold at once. At this limit requests wait to begin, and
    engines' answers wait to be read, the oldest request's excepted."""
    idle_seconds: float = Field(default=30.0, gt=0)
    """A pooled connection unused for longer is closed."""
    max_connection_age_seconds: float = Field(default=300.0, gt=0)
    """A connection older than this is not used again, so that DNS changes are followed."""
    health_interval_seconds: float = Field(default=15.0, gt=0)
    """Between two health checks of an engine that is up (jittered)."""
    reconnect_max_seconds: float = Field(default=5.0, gt=0)
    """Longest pause between two handshake attempts with an engine that is down."""
    warm_seconds: float = Field(default=30.0, ge=0, le=3600)
    """After a reload: how long the engines in force keep serving while a changed or added engine has not completed its
    handshake. 0: changes apply at once (docs/resilience.md)."""
    stdio_unanswered: int = Field(default=3, ge=0, le=1000)
    """Calls and pings in a row that a stdio engine may leave unanswered before its process is restarted; 0: never."""
    stdio_restart_max_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest pause before a stdio command is started again that keeps ending without answering a call."""
    breaker_failures: int = Field(default=5, ge=0, le=1000)
    """Failures in a row that open an engine's breaker (docs/resilience.md); 0: breakers never open."""
    breaker_window: int = Field(default=20, ge=1, le=1000)
    """How many of its last calls a breaker looks back at …"""
    breaker_share: float = Field(default=0.5, gt=0, le=1)
    """… and which share of failures among so many opens it."""
    breaker_open_ms: int = Field(default=1000, ge=1, le=3_600_000)
    """The first cool-down of a breaker; each failed probe doubles it …"""
    breaker_longest_open_ms: int = Field(default=60_000, ge=1, le=3_600_000)
    """… up to this."""
    retry_backoff_ms: int = Field(default=50, ge=0, le=10_000)
    """Pause before the first retry of a call (jittered), doubled before each further one."""
    retry_budget: float = Field(default=0.2, ge=0, le=1)
    """Retries of one engine as a share of its recent calls, so that an outage never doubles the load; 0: none."""
    hedge_budget: float = Field(default=0.05, ge=0, le=1)
    """Hedges of one engine as a share of its recent calls."""
    eject_failures: int = Field(default=3, ge=0, le=1000)
    """Failures in a row after which a replica is left out for a while; 0: none is."""
    eject_ms: int = Field(default=5000, ge=1, le=3_600_000)
    """The first such while; doubled each time it is left out again before it was well, up to a minute."""
    slow_start_seconds: float = Field(default=10.0, ge=0, le=3600)
    """How long a replica that is back takes to get its full share of calls again."""


class LogSettings(_Section):
    """The log on stderr."""

    format: Literal["json", "console"] = "json"
    """Lines of JSON, or for a person."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""
    bodies: bool = False
    """Whether a request's line holds what was asked for; hits are never logged."""
    max_per_kind: int = Field(default=100, ge=0, le=1_000_000)
    """Most lines of one kind of event in `per_kind_seconds`; `suppressed` counts the rest (docs/signals.md). 0: all."""
    per_kind_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """In how many seconds a kind of event may have so many lines, and how often `suppressed` is said of it."""


class AdminSettings(_Section):
    """What operators may do."""

    drills: bool = False
    """Whether they may give engines a fault on purpose."""


class GatewaySettings(_Section):
    """`config/gateway.yaml`: everything but the engines."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    retrieve: RetrieveSettings = Field(default_factory=RetrieveSettings)
    state: StateSettings = Field(default_factory=StateSettings)
    fusion: FusionSettings = Field(default_factory=FusionSettings)
    index: IndexSettings = Field(default_factory=IndexSettings)
    federation: FederationSettings = Field(default_factory=FederationSettings)
    engines: EnginesSettings = Field(default_factory=EnginesSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    auth: AuthSettings = Field(default_factory=AuthSettings)
    jwt: JwtSettings = Field(default_factory=JwtSettings)
    screen: ScreenSettings = Field(default_factory=ScreenSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    mcp: McpSettings = Field(default_factory=McpSettings)
    traces: TracesSettings = Field(default_factory=TracesSettings)

    @model_validator(mode="after")
    def _callers_can_be_known(self) -> "GatewaySettings":
        check_together(self.auth, self.jwt)
        if self.metrics.access == "admin" and "none" in self.auth.mode:
            raise MisplacedKey("admin needs callers that are told apart: set auth.mode", "metrics", "access")
        if self.metrics.port and self.metrics.port == self.server.port:
            raise MisplacedKey("is server.port already; choose another one, or 0 for none", "metrics", "port")
        return self

    @model_validator(mode="after")
    def _sessions_are_known_to_all_workers(self) -> "GatewaySettings":
        if self.server.handshake == "required" and self.server.workers > 1 and not self.state.shared:
            raise MisplacedKey(
                "'required' needs 'workers: 1', or a 'state.url' of a Redis, since workers share no sessions else",
                "server",
                "handshake",
            )
        return self


def file_name(model: type[BaseModel], field: str) -> str:
    """The key of `field` as it is written in the file."""
    info: Any = model.model_fields[field]
    return info.alias or field
