"""What one answer leaves behind for the next, where it is kept, and within which bounds.

Decides what a store's address looks like; it refuses to know how one is reached.
"""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from app.settings.fields import Section

MEMORY = "memory://"
REDIS = ("redis", "rediss", "unix")


class StateSettings(Section):
    """What one answer leaves behind for the next: pages (cursors) and sessions, each kept within bounds."""

    cursor_ttl_seconds: int = Field(default=300, ge=1, le=86_400)
    """How long a `nextCursor` can be used."""
    max_cursors: int = Field(default=10_000, ge=1)
    """Cursors kept at once; of more, the least recently used are forgotten first."""
    max_kept_hits: int = Field(default=50_000, ge=0)
    """Engines' hits kept for later pages; a cursor whose hits are not kept asks the engines again."""
    session_ttl_seconds: int = Field(default=1800, ge=1, le=604_800)
    """How long after its last answer a session is remembered."""
    max_sessions: int = Field(default=10_000, ge=1)
    """Sessions remembered at once; of more, the least recently used are forgotten first."""
    max_session_hits: int = Field(default=10_000, ge=1)
    """Hits remembered of one session; of more, the oldest are forgotten first."""
    max_addresses: int = Field(default=10_000, ge=1)
    """Client addresses whose requests or wrong credentials are counted at once; of more, the least recently seen go."""
    idempotency_ttl_seconds: int = Field(default=86_400, ge=1, le=604_800)
    """How long the result of a call with an `idempotencyKey` is remembered."""
    max_idempotency_keys: int = Field(default=10_000, ge=1)
    """Such results remembered at once; of more, the least recently used are forgotten first."""
    url: str = Field(default=MEMORY, max_length=2048)
    """Where all this is kept: `memory://` is each process by itself, `redis://…` is shared by all that name it."""
    prefix: str = Field(default="rcp-gateway", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """What every key in Redis begins with."""
    replicas: int = Field(default=1, ge=1, le=10_000)
    """Processes that share the state, workers counted: while Redis is lost, each lets through its part of a limit."""
    timeout_ms: int = Field(default=40, ge=1, le=10_000)
    """How long Redis may be silent to all who wait for it; after that it counts as lost until it answers again."""
    connections: int = Field(default=16, ge=1, le=1024)
    """Most connections to Redis at once, of each process."""
    max_shared_bytes: int = Field(default=262_144, ge=0)
    """Hits kept for later pages whose JSON is longer stay in the process that got them."""

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
            raise ValueError("has a port that is no number up to 65535")
        return url

    @property
    def shared(self) -> bool:
        """Whether other processes find what this one keeps."""
        return self.url != MEMORY


def _port(url: str) -> int | None:
    """The port of `url`, 0 if it has none; None if it is not one."""
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return None
