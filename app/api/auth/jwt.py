"""Verifies JSON Web Tokens of one issuer, and maps their claims to a tenant and its roles.

No claim is used before the signature is verified. Error messages never contain a token.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from time import time
from typing import Any, NamedTuple

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet
from joserfc.jws import JWSRegistry, extract_compact
from joserfc.jwt import JWTClaimsRegistry

from app.api.auth.jwks import SigningKeys
from app.protocol.errors import BackendUnavailable
from app.settings.auth import JwtSettings

MAX_VERIFIED = 10_000
"""Verified tokens that are cached. Beyond this limit, the least recently used are evicted and verified again."""

MAX_HEADER = 4096
"""Longest token header in bytes; some contain a certificate chain."""

MAX_TRIED = 16
"""Keys that are tried for a token without a key id. It bounds the CPU time that one token can cost."""

_KEY_TYPES = {
    algorithm: kind
    for kind, algorithms in {
        "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        "EC": ("ES256", "ES384", "ES512"),
        "OKP": ("Ed25519",),
    }.items()
    for algorithm in algorithms
}

_BAD = (JoseError, ValueError, TypeError, KeyError, RecursionError, OverflowError)
"""Exceptions that the library raises for malformed tokens."""


class TokenClaims(NamedTuple):
    """The result of a verified token; see TokenVerifier."""

    tenant: str
    roles: frozenset[str] | None
    """None: all roles of the tenant."""
    key_id: str
    """Names the issuer's key in the log."""


class BadToken(Exception):
    """The token is invalid, expired, or not for this gateway."""


class JwtVerifier:
    """Verifies tokens of one issuer. Verified tokens are cached until they expire or the issuer's keys change."""

    __slots__ = ("_claims", "_clock", "_jws", "_settings", "_verified", "_version", "keys")

    def __init__(self, settings: JwtSettings, keys: SigningKeys, clock: Callable[[], float] = time) -> None:
        """`clock`: seconds since the epoch."""
        self.keys = keys
        self._settings = settings
        self._clock = clock
        self._jws = JWSRegistry(algorithms=list(settings.algorithms), strict_check_header=False)
        self._jws.max_header_length = MAX_HEADER
        self._claims = JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=settings.leeway_seconds,
            iss={"essential": True, "value": settings.issuer or ""},
            aud={"essential": True, "value": settings.audience or ""},
            exp={"essential": True},
        )
        self._verified: OrderedDict[bytes, tuple[TokenClaims, float]] = OrderedDict()
        self._version = 0

    async def tenant_of(self, token: bytes) -> TokenClaims | None:
        """The claims of a token; None if it is invalid. Raises BackendUnavailable before the keys were ever fetched."""
        try:
            return await self.bearer(token)
        except BadToken:
            return None

    def start(self) -> None:
        """Begin to fetch the issuer's keys."""
        self.keys.start()

    async def close(self) -> None:
        """Stop fetching keys."""
        await self.keys.close()

    async def bearer(self, token: bytes) -> TokenClaims:
        """The claims of a token. Raises BadToken, BackendUnavailable."""
        # The digest is the key, so that no usable credential stays in memory.
        digest = sha256(token).digest()
        known = self._remembered(digest)
        if known is not None:
            return known
        kid, algorithm = _key_of(token)
        keys = await self.keys.known(kid)
        if keys is None:
            raise BackendUnavailable("the signing keys of the token issuer have not been fetched yet", retryable=True)
        try:
            read, kid = self._verified_by(keys, token, kid, algorithm)
            self._claims.validate(read.claims)
            bearer = self._bearer(read.claims, kid)
            end = float(read.claims["exp"]) + self._settings.leeway_seconds
        except _BAD as fault:
            raise BadToken(type(fault).__name__) from None
        # Only valid tokens are cached: invalid ones could fill the cache at will.
        self._verified[digest] = (bearer, end)
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return bearer

    def _verified_by(self, keys: KeySet, token: bytes, kid: str | None, algorithm: Any) -> tuple[jwt.Token, str | None]:
        """(token, id of the key that signed it). Raises JoseError, ValueError."""
        if kid is not None or len(keys.keys) == 1:
            return jwt.decode(token, keys, registry=self._jws), kid
        for key in [key for key in keys.keys if _fits(key, algorithm)][:MAX_TRIED]:
            try:
                return jwt.decode(token, key, registry=self._jws), key.kid
            except _BAD:
                continue  # signed with another key
        raise ValueError("no key of the issuer signed it")

    def _remembered(self, digest: bytes) -> TokenClaims | None:
        if self._version != self.keys.version:
            self._verified.clear()
            self._version = self.keys.version
        known = self._verified.get(digest)
        if known is None:
            return None
        if known[1] <= self._clock():
            del self._verified[digest]
            return None
        self._verified.move_to_end(digest)
        return known[0]

    def _bearer(self, claims: dict[str, Any], kid: str | None) -> TokenClaims:
        """Tenant and roles as `jwt.*_claim` maps them. Raises ValueError if the claims name no tenant."""
        settings = self._settings
        tenant = _claim(claims, settings.tenant_claim)
        if type(tenant) is not str or (settings.tenants and tenant not in settings.tenants):
            raise ValueError("no tenant")
        roles = None
        if settings.roles_claim is not None:
            said = _claim(claims, settings.roles_claim)
            # `scope` is one string with spaces (RFC 8693 §4.2); roles claims are usually lists.
            words = said.split() if type(said) is str else said if type(said) is list else []
            roles = frozenset(settings.roles[word] for word in words if type(word) is str and word in settings.roles)
        return TokenClaims(settings.tenants.get(tenant, tenant), roles, f"jwt:{(kid or 'only')[:64]}")

    def __repr__(self) -> str:
        return f"<JwtVerifier {len(self._verified)}/{MAX_VERIFIED} remembered, {self.keys!r}>"


def _fits(key: Key, algorithm: Any) -> bool:
    """Whether the key may have signed with this algorithm. A key of another curve passes, and then verifies nothing."""
    stated = key.as_dict(private=False).get("alg")
    return key.key_type == _KEY_TYPES.get(algorithm) and stated in (None, algorithm)


def _key_of(token: bytes) -> tuple[str | None, Any]:
    """(key id, algorithm) of the header, which is not verified yet. Raises BadToken."""
    if token.index(b".") > MAX_HEADER:
        raise BadToken("the header is too long")
    try:
        header = extract_compact(token).headers()
    except _BAD as fault:
        raise BadToken(type(fault).__name__) from None
    if "crit" in header:
        # RFC 7515 §4.1.11: a recipient must understand every extension listed here, and we support none. An empty or
        # malformed list is invalid, but the library treats it as absent.
        raise BadToken("the header has 'crit'")
    kid, algorithm = header.get("kid"), header.get("alg")
    return kid if type(kid) is str else None, algorithm if type(algorithm) is str else None


def _claim(claims: dict[str, Any], path: str) -> Any:
    """The claim at a dotted path; None if there is none."""
    # First as a whole: claim names can be URLs, which contain dots.
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if type(value) is dict else None
    return value
