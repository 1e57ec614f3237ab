"""The sections `auth`, `jwt` and `metrics` of `gateway.yaml`, and what they require of each other.

Tenants and their keys are declared in the tenants file (`tenants_file.py`).
"""

from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from app.settings.field_errors import FieldError
from app.settings.fields import MisplacedKey, Section, renamed, words

Role = Literal["read", "write", "feedback", "admin"]
Mode = Literal["none", "keys", "jwt"]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"
]  # fmt: skip
"""Asymmetric signatures only: with a symmetric one, a published key could forge tokens."""


class AuthSettings(Section):
    """Authentication of callers."""

    mode: Annotated[list[Mode], BeforeValidator(words)] = Field(default=["none"], min_length=1)
    """Authentication methods: `none` (every caller may do everything), `keys`, `jwt`, or the latter two."""
    allow_anonymous: bool = False
    """Whether mode `none` may listen on an address that other machines can reach."""
    tenants_file: str | None = Field(default=None, min_length=1)
    """File of the tenants, their keys and permissions. Required for `keys` and `jwt`."""
    max_failures: int = Field(default=20, ge=1, le=10_000)
    """Failed authentications per client address and minute. Beyond it the address gets 429, without a log line."""
    secret: str | None = Field(default=None, min_length=16, max_length=1024, repr=False)
    """Key for ids given to callers, such as `memoryId`. Must be the same on all replicas and after restarts.
    Default: a generated key, kept in the shared state, or without one until the next restart."""


class JwtSettings(Section):
    """Validation of JSON Web Tokens, and the claims that identify a caller."""

    issuer: str | None = Field(default=None, min_length=1)
    """Expected `iss`, compared exactly."""
    audience: str | None = Field(default=None, min_length=1)
    """Expected audience; must be in the token's `aud`."""
    jwks_url: str | None = None
    """URL of the issuer's keys (JWKS): `https://`, or `http://` on loopback."""
    algorithms: Annotated[list[Algorithm], BeforeValidator(words)] = Field(default=["RS256", "ES256"], min_length=1)
    """Accepted signature algorithms."""
    refresh_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """Refresh interval of the issuer's keys. An unknown key triggers a refresh at once, at most every ten seconds."""
    timeout_seconds: float = Field(default=2.0, gt=0, le=30)
    """Timeout of one refresh."""
    leeway_seconds: int = Field(default=30, ge=0, le=600)
    """Allowed clock difference to the issuer."""
    tenant_claim: str = Field(default="tenant", min_length=1)
    """Claim that names the tenant. Dots address nested objects."""
    tenants: dict[str, str] = Field(default_factory=dict)
    """Maps values of that claim to tenant ids. Empty: the value is the tenant id."""
    roles_claim: str | None = Field(default=None, min_length=1)
    """Claim that lists roles, as a list or a space-separated string. If absent, the token has all roles of its
    tenant."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """Maps values of that claim to roles. A token never has more roles than its tenant."""

    @field_validator("jwks_url")
    @classmethod
    def _safe_address(cls, url: str | None) -> str | None:
        if url is None:
            return url
        try:
            parts = urlsplit(url)
            safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
            usable = safe and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        except ValueError:  # its message may quote the URL
            usable = False
        if not usable:
            raise ValueError("must be an https:// URL without credentials, or http:// on loopback")
        return url


class MetricsSettings(Section):
    """`/metrics`."""

    access: Literal["open", "admin"] | None = None
    """Who may read `/metrics` (also spelled `auth`): everyone, or callers with the role `admin`. Default: `open` only
    if auth.mode is none."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Separate port for `/metrics` on `server.host`, without authentication; `/metrics` is then not on `server.port`.
    0: none."""

    @model_validator(mode="before")
    @classmethod
    def _also_auth(cls, value: Any) -> Any:
        return renamed(value, {"auth": "access"})


def check_together(auth: AuthSettings, jwt: JwtSettings) -> None:
    """Check the two sections against each other. Raises MisplacedKey."""
    if "none" in auth.mode:
        if len(auth.mode) > 1:
            raise MisplacedKey("'none' cannot be combined with another mode", "auth", "mode")
        if auth.tenants_file is not None:
            raise MisplacedKey("is not used while auth.mode is none; set auth.mode to [keys]", "auth", "tenants_file")
        return
    if auth.tenants_file is None:
        raise MisplacedKey(f"is missing: mode {' and '.join(auth.mode)} needs a tenants file", "auth", "tenants_file")
    if "jwt" in auth.mode:
        for name in ("issuer", "audience", "jwks_url"):
            if getattr(jwt, name) is None:
                raise MisplacedKey("is missing: auth.mode contains jwt", "jwt", name)


def exposure(host: str, auth: AuthSettings) -> FieldError | None:
    """The fault of listening on `host` without authentication, reachable from other machines. None if there is none."""
    if "none" not in auth.mode or auth.allow_anonymous or is_loopback(host):
        return None
    return FieldError(
        "auth.mode",
        f"is none, and '{host}' is reachable from other machines: anyone could query all engines",
        "set auth.mode to [keys] with auth.tenants_file, listen on 127.0.0.1, or set auth.allow_anonymous to true "
        "(RCP_GATEWAY__AUTH__ALLOW_ANONYMOUS=true)",
    )


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable only from this machine. A name other than localhost counts as public."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
