"""Who may come in, as the operator wishes it: the sections `auth` and `jwt` of `gateway.yaml`, and what they need of
each other. Callers themselves are declared in the tenants file (`tenants.py`).

It refuses to know requests, and what a caller that came in may see.
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
"""Signatures by a private key alone: a key that is published can verify them and not make them."""


class AuthSettings(Section):
    """Who may come in."""

    mode: Annotated[list[Mode], BeforeValidator(words)] = Field(default=["none"], min_length=1)
    """How callers are known: `none` (everybody may everything), `keys`, `jwt`, or both of the latter."""
    allow_anonymous: bool = False
    """Whether mode `none` may be served on an address that others than this machine can reach."""
    tenants_file: str | None = Field(default=None, min_length=1)
    """The tenants, their keys and what they may; needed by `keys` and `jwt`."""
    max_failures: int = Field(default=20, ge=1, le=10_000)
    """Wrong credentials an address may present in a minute; after that it is answered 429 without a line in the log."""
    secret: str | None = Field(default=None, min_length=16, max_length=1024, repr=False)
    """Key of the names that callers are given, such as `memoryId`; the same for every replica and after every restart.
    By default one is drawn and kept in the shared state, or without it until the next restart."""


class JwtSettings(Section):
    """Which JSON Web Tokens are believed, and what they say about a caller."""

    issuer: str | None = Field(default=None, min_length=1)
    """`iss`, compared exactly."""
    audience: str | None = Field(default=None, min_length=1)
    """Must be among the token's `aud`."""
    jwks_url: str | None = None
    """Where the issuer publishes its keys; `https://`, or `http://` on loopback."""
    algorithms: Annotated[list[Algorithm], BeforeValidator(words)] = Field(default=["RS256", "ES256"], min_length=1)
    """Signatures that are accepted."""
    refresh_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """Between two looks at the issuer's keys; an unknown key makes us look at once, at most every ten seconds."""
    timeout_seconds: float = Field(default=2.0, gt=0, le=30)
    """Longest one look may take."""
    leeway_seconds: int = Field(default=30, ge=0, le=600)
    """How far the issuer's clock may be from ours."""
    tenant_claim: str = Field(default="tenant", min_length=1)
    """The claim that names the tenant; dots lead into objects."""
    tenants: dict[str, str] = Field(default_factory=dict)
    """Value of that claim -> tenant; empty: the value is the tenant's id."""
    roles_claim: str | None = Field(default=None, min_length=1)
    """The claim that lists what the token may (a list, or words with spaces); absent: all that the tenant may."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """Word in that claim -> role; never more than the tenant has."""

    @field_validator("jwks_url")
    @classmethod
    def _safe_address(cls, url: str | None) -> str | None:
        if url is None:
            return url
        try:
            parts = urlsplit(url)
            safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
            usable = safe and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        except ValueError:  # its text may quote the URL
            usable = False
        if not usable:
            raise ValueError("must be an https:// URL without credentials, or http:// on loopback")
        return url


class MetricsSettings(Section):
    """`/metrics`."""

    access: Literal["open", "admin"] | None = None
    """Who may read it (also written `auth`): everybody, or callers with the role `admin`; by default `open` only while
    auth.mode is none."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Another port of `server.host` for it, there open to all and no longer at the doors' port; 0 or None: no such."""

    @model_validator(mode="before")
    @classmethod
    def _also_auth(cls, value: Any) -> Any:
        return renamed(value, {"auth": "access"})


def check_together(auth: AuthSettings, jwt: JwtSettings) -> None:
    """What the two sections need of each other. Raises Misplaced."""
    if "none" in auth.mode:
        if len(auth.mode) > 1:
            raise MisplacedKey("'none' lets everybody in and cannot stand beside another mode", "auth", "mode")
        if auth.tenants_file is not None:
            raise MisplacedKey("is never read while auth.mode is none; set auth.mode to [keys]", "auth", "tenants_file")
        return
    if auth.tenants_file is None:
        raise MisplacedKey(f"is missing: mode {' and '.join(auth.mode)} needs the tenants", "auth", "tenants_file")
    if "jwt" in auth.mode:
        for name in ("issuer", "audience", "jwks_url"):
            if getattr(jwt, name) is None:
                raise MisplacedKey("is missing: auth.mode has jwt", "jwt", name)


def exposure(host: str, auth: AuthSettings) -> FieldError | None:
    """Why a gateway that listens on `host` must not start: everybody could ask everything. None if it may."""
    if "none" not in auth.mode or auth.allow_anonymous or is_loopback(host):
        return None
    return FieldError(
        "auth.mode",
        f"is none, and '{host}' can be reached from other machines: everybody could ask everything",
        "set auth.mode to [keys] with auth.tenants_file, listen on 127.0.0.1, or set auth.allow_anonymous to true "
        "(RCP_GATEWAY__AUTH__ALLOW_ANONYMOUS=true)",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than localhost is taken to be public."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
