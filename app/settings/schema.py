"""Every setting with its default: the registry (`rcp.json`, RCP §16.1) and the gateway's own file (`gateway.yaml`).

The text below a field is its description in the JSON Schema and in the tables of docs/.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from app.settings.auth import AuthSettings, JwtSettings, MetricsSettings, check_together
from app.settings.engine_parts import EngineBreaker, EngineShadow, EngineTls
from app.settings.fields import (
    EngineId,
    EngineUrl,
    HeaderName,
    HeaderValue,
    Host,
    MisplacedKey,
    Namespace,
    Network,
    RegistrySection,
    Section,
    Topic,
    address_of,
    check_unique,
    on_or_off,
    words,
)
from app.settings.mcp import McpSettings
from app.settings.operators import AdminSettings, LogSettings, TracesSettings
from app.settings.server_security import ServerTls, WebOrigin
from app.settings.source_settings import RegistrySettings
from app.settings.state import CacheSettings, StateSettings


class EngineEntry(RegistrySection):
    """One engine of the registry: the keys of RCP first, then the optional keys of this gateway."""

    id: EngineId
    """Unique id of letters, digits and `. _ / -`, starting with a letter or digit. Used in reports, weights, metrics
    and logs."""
    transport: Literal["http", "stdio"] | None = None
    """Transport to the engine. If absent, inferred from `url` or `command`."""
    url: EngineUrl | None = None
    """URL of an HTTP engine: `http://` or `https://`, without credentials or fragment."""
    replicas: Annotated[list[EngineUrl], Field(max_length=32)] = Field(default_factory=list)
    """Additional URLs of the same engine with the same index. Calls are balanced over `url` and these."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Program and arguments that start a stdio engine."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """Weight in fusion. With 0 the engine adds nothing to scores."""
    priority: int = 0
    """Where one engine must be chosen (types, bodies, embedding space), the highest priority wins."""
    required: bool = False
    """If this engine fails, the whole request fails with its error code."""
    writer: bool = False
    """Default target of `index/add` and `memory/build` if several engines support them and the call names none. Without
    a writer, the engine with the highest `priority` is used."""

    enabled: bool = True
    """If false, the engine is reported as `disabled` and never called."""
    timeout_ms: int = Field(default=2000, ge=1, le=600_000)
    """Timeout of one call, from DNS resolution to the last byte."""
    max_concurrency: int = Field(default=32, ge=1, le=10_000)
    """Maximum concurrent calls, per worker."""
    max_waiting: int | None = Field(default=None, ge=0, le=100_000)
    """Maximum calls that wait for a free slot; default: 8 × `maxConcurrency`. Further calls fail at once as
    `overloaded`."""
    retries: int = Field(default=1, ge=0, le=5)
    """Maximum retries of an idempotent call after a retryable failure, within its deadline and the retry budget."""
    attempt_timeout_ms: int | None = Field(default=None, ge=1, le=600_000)
    """Timeout of one attempt; default: the timeout of the call."""
    hedge: bool = False
    """Send a second attempt to another replica if the first has not answered within the 95th percentile of latency."""
    health_check: bool = True
    """Whether the engine is pinged. If false, only calls show whether it is up."""
    breaker: EngineBreaker | None = None
    """Circuit breaker of this engine, where it differs from the section `engines`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """HTTP headers of every request to this engine. Values may contain `${ENV_NAME}`."""
    client: Literal["http", "httpx"] = "http"
    """`http`: HTTP/1.1. `httpx`: HTTP/2 if the engine offers it over TLS and the extra `http2` is installed, otherwise
    HTTP/1.1. Neither uses a proxy from the environment."""
    tls: EngineTls | None = None
    """TLS settings for an `https://` engine."""
    id_namespace: Namespace | None = None
    """Prefix for the ids of this engine's hits (`docs` turns 7 into `docs:7`), so that unrelated corpora never
    merge."""
    confidence: Literal["ranked", "independent", "ignore"] = "ranked"
    """How confidences of this engine are used: as consistent with its ranking, as an independent signal, or not at all
    (docs/explanation/fusion.md)."""
    silent: Literal["scores", "ranks"] | None = None
    """How lists of this engine are read if no engine gives confidences. Default: `fusion.silent`. Set `ranks` if its
    score is computed from the rank, such as `1/r`."""
    select: Literal["auto", "always", "named"] = "auto"
    """With engine selection on: ask this engine if it is promising (`auto`), always, or only if a request names it."""
    topics: Annotated[list[Topic], Field(max_length=32)] = Field(default_factory=list)
    """Texts that describe what the engine contains, for engine selection."""
    cacheable: bool = True
    """Whether answers with this engine may be cached, and shared by equal requests
    (docs/explanation/answer-cache.md)."""
    cache_ttl_ms: int | None = Field(default=None, ge=0, le=86_400_000)
    """Longest time to cache answers with this engine; default: `cache.ttl_seconds`."""
    shadow: EngineShadow | None = None
    """Ask this engine after the answer was sent, and compare it, but never fuse it
    (docs/explanation/shadow-engines.md)."""
    discover: bool = False
    """The engine is a gateway: call its engines directly if it lists them with an endpoint on an allowed host
    (docs/reference/http-and-stdio.md)."""
    discover_hosts: list[Host] = Field(default_factory=list)
    """Additional hosts for discovered engines, as `host` (any port) or `host:port`."""
    max_trust: Literal["trusted", "community", "untrusted"] | None = None
    """Highest `trust.level` of this engine's hits. A higher level is lowered to it."""

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
            raise MisplacedKey("a stdio engine has no replicas", "replicas")
        return self

    @model_validator(mode="after")
    def _its_urls_fit(self) -> "EngineEntry":
        for place, url in enumerate(self.replicas):
            if url in self.urls[: place + 1]:
                raise MisplacedKey("is already a URL of this engine", "replicas", place)
        if self.tls and not all(url.startswith("https://") for url in self.urls):
            raise MisplacedKey("needs an https:// URL" if not self.replicas else "needs https:// URLs only", "tls")
        if self.hedge and not self.replicas:
            raise MisplacedKey("needs 'replicas': the second attempt goes to another replica", "hedge")
        return self

    @model_validator(mode="after")
    def _hosts_are_for_discovery(self) -> "EngineEntry":
        if self.discover_hosts and not self.discover:
            raise MisplacedKey("has no effect without 'discover'", "discoverHosts")
        return self

    @model_validator(mode="after")
    def _shadows_answer_nobody(self) -> "EngineEntry":
        if self.shadow is None:
            return self
        if self.required:
            raise MisplacedKey("cannot be true beside 'shadow': a shadow engine is in no answer", "required")
        if self.discover:
            raise MisplacedKey("cannot be true beside 'shadow': discovered engines would be in answers", "discover")
        if self.shadow.of == self.id:
            raise MisplacedKey("is the engine itself; name the engine that it would replace", "shadow", "of")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Every URL of an HTTP engine."""
        return (self.url, *self.replicas) if self.url else ()

    @property
    def kind(self) -> Literal["http", "stdio"]:
        """How the engine is reached."""
        return "stdio" if self.command else "http"


class Registry(RegistrySection):
    """`config/rcp.json`: the engines behind this gateway."""

    engines: list[EngineEntry]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "Registry":
        check_unique((entry.id for entry in self.engines), "engines", "id")
        return self

    @model_validator(mode="after")
    def _shadows_are_of_live_engines(self) -> "Registry":
        live = {entry.id for entry in self.engines if entry.shadow is None}
        for index, entry in enumerate(self.engines):
            if entry.shadow is not None and entry.shadow.of is not None and entry.shadow.of not in live:
                raise MisplacedKey(
                    "names no engine of this file that is not a shadow engine itself", "engines", index, "shadow", "of"
                )
        return self


class ServerSettings(Section):
    """The HTTP server."""

    name: str = Field(default="rcp-gateway", min_length=1, max_length=128)
    """`server.name` in the RCP advertisement."""
    id: str | None = Field(default=None, min_length=1, max_length=128)
    """Id of this gateway in `_meta.federation.path`. Default: the name and a short hash of the registry."""
    host: str = "127.0.0.1"
    """Address to listen on. Overridden by `--host`."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 picks a free one. Overridden by `--port`."""
    workers: int = Field(default=1, ge=1, le=256)
    """Number of processes. They share the listening address, `/metrics` and the store of `state.url`. Connections,
    limits and engine health are per process; without a shared store, so are cursors, sessions and cancellation."""
    worker_timeout_seconds: float = Field(default=30.0, ge=0, le=3600)
    """Kill and replace a worker whose event loop has been blocked for this long; 0: never. With one process, use a
    liveness probe on `/livez` instead."""
    public_url: str | None = Field(default=None, max_length=2048)
    """URL under which clients reach this gateway, such as `https://rcp.example`. If set, engines are listed with their
    endpoints (docs/reference/http-and-stdio.md)."""
    handshake: Literal["optional", "required"] = "optional"
    """`optional`: HTTP requests need no `initialize`. `required`: -32001 until the client has sent it."""
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """Maximum size of a request body. A larger one is answered with 413 and -32013."""
    max_line_bytes: int = Field(default=16_777_216, ge=1024)
    """Maximum length of a line over stdio. A longer one is answered with -32013."""
    max_batch: int = Field(default=50, ge=1, le=10_000)
    """Maximum size of a JSON-RPC batch. A larger one is rejected with -32602."""
    keep_alive_seconds: int = Field(default=75, ge=1)
    """Idle timeout of client connections. Set it longer than the idle timeout of the load balancer in front."""
    sse_comment_seconds: float = Field(default=15.0, gt=0, le=3600)
    """Send a comment on an event stream that was silent for this long, so that proxies keep it open."""
    send_timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Close the connection of a client that has not read its response or the next event for this long."""
    trusted_proxies: Annotated[list[Network], BeforeValidator(words)] = Field(default_factory=list)
    """Addresses or networks of proxies whose X-Forwarded-For is trusted. From others the header is ignored."""
    message_timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Time a client has to send a whole request. After that it gets 408 and the connection is closed."""
    max_in_flight: int = Field(default=256, ge=1, le=100_000)
    """Maximum concurrent requests, counting each member of a batch. Further requests wait, then get 503."""
    max_waiting: int = Field(default=64, ge=0, le=100_000)
    """Maximum requests that wait for admission."""
    max_wait_ms: int = Field(default=100, ge=0, le=60_000)
    """Maximum time a request waits for admission. Its deadline counts from its arrival."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Maximum client connections. Beyond it only probes are answered. Limited further so that file descriptors remain
    for engines."""
    max_connections_per_address: int | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum connections of one client address; beyond it only probes are answered. Default: three quarters of
    `max_connections`, if that is at least 64; 0: no limit. Not applied to addresses in `trusted_proxies`."""
    drain_seconds: float = Field(default=10.0, ge=0, le=3600)
    """After SIGTERM, keep serving for this long while `/readyz` returns 503, so that load balancers notice."""
    grace_seconds: float = Field(default=20.0, ge=0, le=3600)
    """After the drain, time for requests in flight to finish before they are cancelled. The orchestrator's kill timeout
    must be longer than both together."""
    reload_seconds: float = Field(default=2.0, ge=0, le=3600)
    """Interval of checks for changed configuration files, which are then reloaded. 0: reload only on SIGHUP."""
    allowed_hosts: Annotated[list[Host], BeforeValidator(words)] = Field(default_factory=list)
    """Accepted `Host` headers, as `host` (any port) or `host:port`. Others are answered with 421. Empty: all."""
    cors_origins: Annotated[list[WebOrigin], BeforeValidator(words)] = Field(default_factory=list)
    """Origins of web pages that may call RCP and MCP (CORS). Empty: none."""
    docs: bool = True
    """Serve `/openapi.json` and `/docs`, which describe the methods and endpoints to anybody. Read at start."""
    tls: ServerTls | None = None
    """Serve HTTPS. If absent, the gateway serves HTTP. The registry's spelling (`certFile`, …) is accepted as well."""

    @field_validator("public_url")
    @classmethod
    def _reachable(cls, url: str | None) -> str | None:
        if url is None:
            return url
        if "?" in url or "@" in url:
            raise ValueError("must have no query and no credentials, because every caller sees it")
        return address_of(url, "https://rcp.example").rstrip("/")


class RetrieveSettings(Section):
    """Fan-out and merging of `retrieve`."""

    deadline_ms: int = Field(default=10_000, ge=1, le=600_000)
    """Maximum time of a request. `_meta.deadlineMs` can only shorten it."""
    reserve_ms: int = Field(default=100, ge=0, le=10_000)
    """Time reserved for fusion and the response, taken from the time of the engines (at most a fifth of it)."""
    max_k: int = Field(default=200, ge=1, le=10_000)
    """Largest `k` that is advertised and served."""
    overfetch: float = Field(default=2.0, ge=1, le=100)
    """Each engine is asked for `k` times this factor."""
    window_min: int = Field(default=20, ge=1, le=10_000)
    """Minimum number of hits asked of each engine, limited to its `maxK`."""
    identity: Literal["id", "uri", "content"] = "id"
    """Which hits count as the same document: same id, same normalised `citation.uri`, or same normalised text
    (docs/explanation/fusion.md)."""
    quorum: float = Field(default=0.0, ge=0, le=1)
    """Tail cut: share of the total weight that must have answered, with all required engines, before `grace_ms`
    starts."""
    grace_ms: int = Field(default=100, ge=0, le=600_000)
    """How long to wait for the other engines once `quorum` is reached; then they are noted as `late`. Quorum 0: no
    cut."""
    rerank_union: bool = True
    """If no retrieving engine can rerank as requested, rerank the fused list with an engine that offers `rerank`."""
    report: Literal["full", "brief", "none"] = "full"
    """Engines that `_meta["x-gateway"].engines` lists: all (`full`), those that failed or gave a hit of the answer with
    `counts` of all (`brief`), or none (`none`). A request can choose with `x-gateway.report`."""


class FusionSettings(Section):
    """Default fusion. A request may choose other values."""

    method: Literal["rrf", "weighted", "convex"] = "rrf"
    """Fusion method of requests that name none (docs/explanation/fusion.md)."""
    rrf_k: int = Field(default=60, ge=1, le=100_000)
    """Rank constant of RRF. Larger values reduce the advantage of the first ranks."""
    confidence_weight: float = Field(default=0.8, ge=0, le=1)
    """Influence of the engines' confidences on RRF; 0 is plain RRF."""
    silent: Literal["scores", "ranks"] = "scores"
    """How lists are read if no engine gives confidences. `scores`: estimate confidences from the scores of each list.
    `ranks`: plain RRF."""
    learning: Annotated[Literal["off", "on", "frozen"], BeforeValidator(on_or_off)] = "off"
    """Learned calibration of the engines' confidences (docs/explanation/fusion.md). `on`: learn from `feedback` and
    apply what was learned. `frozen`: apply it without further learning."""
    learning_scope: Literal["tenant", "gateway"] = "tenant"
    """One calibration per tenant, or one for the whole gateway."""


class SelectSettings(Section):
    """Engine selection: ask only the most promising engines of many (docs/explanation/engine-selection.md)."""

    mode: Annotated[Literal["off", "report", "on"], BeforeValidator(on_or_off)] = "off"
    """`off`: ask every engine. `report`: ask every engine and measure how many would have been enough. `on`: ask the
    most promising ones."""
    engines: int = Field(default=8, ge=1, le=10_000)
    """Least number of engines that are asked."""
    coverage: float = Field(default=0.8, ge=0, le=1)
    """Share of good hits that the selected engines must have given in recent audits; 1 asks every engine."""
    audit: float = Field(default=0.05, ge=0, le=1)
    """Share of requests that ask every engine in order to measure coverage."""
    explore: float = Field(default=0.1, ge=0, le=1)
    """Share of the places that go to engines asked rarely, at least one; 0: none."""


class IndexSettings(Section):
    """Writing into engines' indexes (RCP §7.10, §7.11)."""

    enabled: bool = False
    """Whether `index/add` and `index/delete` are advertised and forwarded; otherwise they fail with -32003
    (docs/reference/methods.md)."""


class FederationSettings(Section):
    """Stacked gateways (RCP §16)."""

    depth: int = Field(default=3, ge=0, le=32)
    """Default and maximum `depth` of a request. Each gateway subtracts one; a gateway that receives 1 or less calls no
    engine."""


class EnginesSettings(Section):
    """Limits for all engines."""

    max_response_bytes: int = Field(default=16_777_216, ge=1024)
    """Maximum size of a decoded response. A larger one fails as `too_large`."""
    max_held_bytes: int = Field(default=100_663_296, ge=1_048_576)
    """Maximum bytes of engine responses held by all requests of a process. At the limit, new requests wait and
    responses are not read, except for the oldest request."""
    idle_seconds: float = Field(default=30.0, gt=0)
    """Close pooled connections that were unused for this long."""
    max_connection_age_seconds: float = Field(default=300.0, gt=0)
    """Do not reuse connections older than this, so that DNS changes take effect."""
    health_interval_seconds: float = Field(default=15.0, gt=0)
    """Interval of health checks of an engine that is up (with jitter)."""
    reconnect_max_seconds: float = Field(default=5.0, gt=0)
    """Longest pause between handshake attempts with an engine that is down."""
    warm_seconds: float = Field(default=30.0, ge=0, le=3600)
    """After a reload, how long the previous engines keep serving until changed or added engines have completed their
    handshake. 0: changes apply at once (docs/explanation/resilience.md)."""
    stdio_unanswered: int = Field(default=3, ge=0, le=1000)
    """Restart the process of a stdio engine after this many unanswered calls and pings in a row; 0: never."""
    stdio_restart_max_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """Longest pause before restarting a stdio command that keeps ending without having answered a call."""
    breaker_failures: int = Field(default=5, ge=0, le=1000)
    """Consecutive failures that open the circuit breaker of an engine (docs/explanation/resilience.md); 0: never."""
    breaker_window: int = Field(default=20, ge=1, le=1000)
    """Number of recent calls that the circuit breaker considers."""
    breaker_share: float = Field(default=0.5, gt=0, le=1)
    """Share of failures among these calls that opens the circuit breaker."""
    breaker_open_ms: int = Field(default=1000, ge=1, le=3_600_000)
    """First open period of a circuit breaker. Each failed probe doubles it."""
    breaker_longest_open_ms: int = Field(default=60_000, ge=1, le=3_600_000)
    """Longest open period of a circuit breaker."""
    retry_backoff_ms: int = Field(default=50, ge=0, le=10_000)
    """Pause before the first retry (with jitter), doubled before each further retry."""
    retry_budget: float = Field(default=0.2, ge=0, le=1)
    """Maximum retries of an engine as a share of its recent calls, so that an outage does not double the load; 0:
    none."""
    hedge_budget: float = Field(default=0.05, ge=0, le=1)
    """Maximum hedged attempts of an engine as a share of its recent calls."""
    eject_failures: int = Field(default=3, ge=0, le=1000)
    """Consecutive failures after which a replica is ejected; 0: never."""
    eject_ms: int = Field(default=5000, ge=1, le=3_600_000)
    """First ejection period of a replica, doubled at each repeated ejection up to one minute."""
    slow_start_seconds: float = Field(default=10.0, ge=0, le=3600)
    """Time over which a recovered replica returns to its full share of calls."""


class ScreenSettings(Section):
    """Marking of suspicious hits. A hint for callers, not a protection."""

    injection: Literal["off", "mark", "drop"] = "off"
    """Hits whose text looks like instructions to a model: `off` leaves them, `mark` marks them, `drop` removes them."""
    feedback: bool = False
    """Whether hits that a tenant has reported as poisoned are marked for that tenant."""
    feedback_ttl_seconds: int = Field(default=86_400, ge=1, le=31_536_000)
    """How long reports are kept after the tenant's last report."""
    max_reported: int = Field(default=10_000, ge=1, le=1_000_000)
    """Maximum reported ids kept per tenant. Beyond this limit, the oldest are evicted."""


class GatewaySettings(Section):
    """`config/gateway.yaml`: all settings except the engines."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    registry: RegistrySettings = Field(default_factory=RegistrySettings)
    retrieve: RetrieveSettings = Field(default_factory=RetrieveSettings)
    state: StateSettings = Field(default_factory=StateSettings)
    fusion: FusionSettings = Field(default_factory=FusionSettings)
    select: SelectSettings = Field(default_factory=SelectSettings)
    cache: CacheSettings = Field(default_factory=CacheSettings)
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
            raise MisplacedKey("'admin' needs authentication; set auth.mode", "metrics", "access")
        if self.metrics.port and self.metrics.port == self.server.port:
            raise MisplacedKey("is the same as server.port; choose another port, or 0 for none", "metrics", "port")
        return self

    @model_validator(mode="after")
    def _shared_cache_has_a_place(self) -> "GatewaySettings":
        if self.cache.shared and not self.state.shared:
            raise MisplacedKey("needs a Redis as 'state.url'", "cache", "shared")
        return self

    @model_validator(mode="after")
    def _sessions_are_known_to_all_workers(self) -> "GatewaySettings":
        if self.server.handshake == "required" and self.server.workers > 1 and not self.state.shared:
            raise MisplacedKey(
                "'required' needs 'workers: 1', or Redis as 'state.url': workers share no sessions otherwise",
                "server",
                "handshake",
            )
        return self
