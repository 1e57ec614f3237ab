"""The sections `state` and `cache` of `gateway.yaml`: what is kept between requests, where, and for how long."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from app.settings.fields import Section

MEMORY = "memory://"
REDIS = ("redis", "rediss", "unix")


class StateSettings(Section):
    """State kept between requests: pages (cursors), sessions, idempotent results."""

    cursor_ttl_seconds: int = Field(default=300, ge=1, le=86_400)
    """Lifetime of a `nextCursor`."""
    max_cursors: int = Field(default=10_000, ge=1)
    """Maximum cursors. Beyond this limit, the least recently used are evicted."""
    max_kept_hits: int = Field(default=50_000, ge=0)
    """Maximum hits kept for later pages. For a cursor without kept hits the engines are queried again."""
    session_ttl_seconds: int = Field(default=1800, ge=1, le=604_800)
    """Lifetime of a session after its last response."""
    max_sessions: int = Field(default=10_000, ge=1)
    """Maximum sessions. Beyond this limit, the least recently used are evicted."""
    max_session_hits: int = Field(default=10_000, ge=1)
    """Maximum hits remembered per session. Beyond this limit, the oldest are evicted."""
    max_addresses: int = Field(default=10_000, ge=1)
    """Maximum client addresses with counters of requests and failed authentications. Beyond it, the least recent are
    evicted."""
    idempotency_ttl_seconds: int = Field(default=86_400, ge=1, le=604_800)
    """Lifetime of the result of a call with an `idempotencyKey`."""
    max_idempotency_keys: int = Field(default=10_000, ge=1)
    """Maximum results of such calls. Beyond this limit, the least recently used are evicted."""
    url: str = Field(default=MEMORY, max_length=2048)
    """Store: `memory://` is per process; `redis://…` is shared by all processes that use it."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """File that keeps learned calibration across restarts if `url` names no Redis. Without it, a restart forgets."""
    prefix: str = Field(default="rcp-gateway", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Prefix of all keys in Redis."""
    replicas: int = Field(default=1, ge=1, le=10_000)
    """Number of processes that share the store, workers included. Without Redis each applies its share of a rate
    limit."""
    timeout_ms: int = Field(default=40, ge=1, le=10_000)
    """Timeout of Redis. After that it counts as unavailable until it answers again."""
    connections: int = Field(default=16, ge=1, le=1024)
    """Maximum connections to Redis per process."""
    max_shared_bytes: int = Field(default=262_144, ge=0)
    """Kept hits with more JSON than this stay in the memory of their process and are not shared."""

    @field_validator("url")
    @classmethod
    def _a_store(cls, url: str) -> str:
        if url == MEMORY:
            return url
        parts = urlsplit(url)
        if parts.scheme not in REDIS or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError(
                "must be memory://, or like redis://user:password@host:6379/0 (rediss:// for TLS, unix:///path)"
            )
        if _port(url) is None:
            raise ValueError("has an invalid port")
        return url

    @property
    def shared(self) -> bool:
        """Whether the store is shared with other processes."""
        return self.url != MEMORY


def _port(url: str) -> int | None:
    """The port of `url`, 0 without one; None if it is invalid."""
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return None


class CacheSettings(Section):
    """Answer cache, and one fan-out for equal requests at the same time (docs/explanation/answer-cache.md)."""

    enabled: bool = False
    """Whether equal `retrieve` requests share engine calls."""
    ttl_seconds: float = Field(default=30.0, ge=0, le=86_400)
    """Lifetime of a cached answer. 0: nothing is cached; equal requests at the same time still share one fan-out."""
    stale_while_revalidate_seconds: float = Field(default=0.0, ge=0, le=86_400)
    """For this long after its lifetime an answer is still served, while one request fetches a new one."""
    stale_if_error_seconds: float = Field(default=0.0, ge=0, le=86_400)
    """For this long after its lifetime an answer is served if no engine answers (-32010) or the deadline passes
    (-32014)."""
    max_bytes: int = Field(default=67_108_864, ge=1024, le=17_179_869_184)
    """Memory for cached answers per process. Beyond it, the least recently used are evicted."""
    max_answer_bytes: int = Field(default=262_144, ge=256, le=67_108_864)
    """A larger answer is not cached."""
    join_ms: int = Field(default=500, ge=0, le=60_000)
    """How long after the start of a fan-out an equal request may still join it."""
    shared: bool = False
    """Whether the processes share cached answers in Redis. Needs `state.url`."""
