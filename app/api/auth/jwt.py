"""JSON Web Tokens: whose they are and what they may, if an issuer that is believed signed them for this gateway.

Decides nothing by what a token says before its signature is verified. It refuses to know headers, and which tenants
there are; nothing it raises repeats a token.
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
"""Tokens whose verification is remembered; of more, the least recently used are verified again."""

MAX_HEADER = 4096
"""Bytes of a token's header; some hold a chain of certificates."""

MAX_TRIED = 16
"""Keys that are tried for a token that names none."""

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
"""What foreign bytes can make the library raise."""


class TokenClaims(NamedTuple):
    """What a verified token says; what `Guard` asks for."""

    tenant: str
    roles: frozenset[str] | None
    """None: all that the tenant may."""
    key_id: str
    """Of the issuer's key, for the log."""


class BadToken(Exception):
    """The token is not believed."""


class JwtVerifier:
    """Verifies tokens of one issuer, and remembers those it has verified until they expire or the keys change."""

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
        """Whose token it is; None if it is not believed. Raises BackendUnavailable while no key has ever been read."""
        try:
            return await self.bearer(token)
        except BadToken:
            return None

    def start(self) -> None:
        """Keep the issuer's keys at hand from now on."""
        self.keys.start()

    async def close(self) -> None:
        """Let go of them."""
        await self.keys.close()

    async def bearer(self, token: bytes) -> TokenClaims:
        """Whose token it is. Raises BadToken, BackendUnavailable."""
        digest = sha256(token).digest()
        known = self._remembered(digest)
        if known is not None:
            return known
        kid, algorithm = _key_of(token)
        keys = await self.keys.known(kid)
        if keys is None:
            raise BackendUnavailable("the keys of the token's issuer cannot be read yet", retryable=True)
        try:
            read, kid = self._verified_by(keys, token, kid, algorithm)
            self._claims.validate(read.claims)
            bearer = self._bearer(read.claims, kid)
            end = float(read.claims["exp"]) + self._settings.leeway_seconds
        except _BAD as fault:
            raise BadToken(type(fault).__name__) from None
        self._verified[digest] = (bearer, end)
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return bearer

    def _verified_by(self, keys: KeySet, token: bytes, kid: str | None, algorithm: Any) -> tuple[jwt.Token, str | None]:
        """(the token, the id of the key that it was signed with). Raises JoseError, ValueError."""
        if kid is not None or len(keys.keys) == 1:
            return jwt.decode(token, keys, registry=self._jws), kid
        for key in [key for key in keys.keys if _fits(key, algorithm)][:MAX_TRIED]:
            try:
                return jwt.decode(token, key, registry=self._jws), key.kid
            except _BAD:
                continue  # signed with another one
        raise ValueError("no key of the issuer has signed it")

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
        """The declared mapping of claims. Raises ValueError if they name no tenant."""
        settings = self._settings
        tenant = _claim(claims, settings.tenant_claim)
        if type(tenant) is not str or (settings.tenants and tenant not in settings.tenants):
            raise ValueError("no tenant")
        roles = None
        if settings.roles_claim is not None:
            said = _claim(claims, settings.roles_claim)
            words = said.split() if type(said) is str else said if type(said) is list else []
            roles = frozenset(settings.roles[word] for word in words if type(word) is str and word in settings.roles)
        return TokenClaims(settings.tenants.get(tenant, tenant), roles, f"jwt:{(kid or 'only')[:64]}")

    def __repr__(self) -> str:
        return f"<Tokens {len(self._verified)}/{MAX_VERIFIED} remembered, {self.keys!r}>"


def _fits(key: Key, algorithm: Any) -> bool:
    """Whether signatures of this algorithm can be made with the key. One of another curve fits and verifies nothing."""
    stated = key.as_dict(private=False).get("alg")
    return key.key_type == _KEY_TYPES.get(algorithm) and stated in (None, algorithm)


def _key_of(token: bytes) -> tuple[str | None, Any]:
    """(the key that the token says it is signed with, the algorithm); not believed. Raises BadToken."""
    if token.index(b".") > MAX_HEADER:
        raise BadToken("its header is too long")
    try:
        header = extract_compact(token).headers()
    except _BAD as fault:
        raise BadToken(type(fault).__name__) from None
    if "crit" in header:
        # RFC 7515 §4.1.11: what is listed must be understood, and we know no extension; empty or malformed it is
        # invalid, where the library takes it for absent.
        raise BadToken("its header has 'crit'")
    kid, algorithm = header.get("kid"), header.get("alg")
    return kid if type(kid) is str else None, algorithm if type(algorithm) is str else None


def _claim(claims: dict[str, Any], path: str) -> Any:
    """The claim at a dotted path; a claim whose own name has dots (a URL) is found, too."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if type(value) is dict else None
    return value
