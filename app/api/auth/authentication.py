"""Authentication of HTTP callers: credential -> tenant -> role -> limits.

Requests in flight are tracked by credential, so that revoking a credential also cancels its requests.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from math import ceil
from typing import Any, NoReturn, Protocol

from app.api.auth.client_address import ClientAddress
from app.api.auth.credentials import Credential, MalformedCredential, credential_of
from app.api.auth.keys import ApiKey, ApiKeys
from app.api.auth.principal import AuthError, Principal
from app.api.caller import Caller
from app.api.running_requests import RunningRequest
from app.federation.tenants import ADMIN, Tenant, tenant_of
from app.protocol.errors import BackendUnavailable, InvalidParams, RateLimited, Unauthorized
from app.settings.schema import FusionSettings, GatewaySettings
from app.settings.tenants_file import ANONYMOUS, Tenants
from app.state.quotas import Owner, Quotas, Reached, at_once
from app.state.rate_limit import Reservation
from app.state.store import IN_MEMORY, StateBackend
from app.telemetry.logs import logger
from app.telemetry.metric_groups import CallerMetrics

Scope = MutableMapping[str, Any]

FAILURE_WINDOW = 60.0
"""Failed authentications of an address are counted for this many seconds, from the first one."""

_LIMIT_MESSAGES = {
    "requests": "this caller has exceeded its request rate",
    "concurrent": "this caller has too many requests in flight",
    "hits": "this caller has used up its hits of the day",
}


class TokenVerifier(Protocol):
    """Verifies bearer tokens; `JwtVerifier` in `app/api/auth/jwt.py` implements it.

    A protocol, because that module needs an optional library.
    """

    async def tenant_of(self, token: bytes) -> tuple[str, frozenset[str] | None, str] | None:
        """(tenant, roles or None for all roles of the tenant, id of the key); None for an invalid token.

        Raises BackendUnavailable while tokens cannot be verified.
        """
        ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class Authenticator:
    """Authenticates callers and applies their limits. A gateway with `auth.mode: none` has none."""

    __slots__ = (
        "_by_roles",
        "_client_address",
        "_clock",
        "_failed_auth",
        "_fusion",
        "_keyring",
        "_metrics",
        "_quotas",
        "_running",
        "_tenants",
        "declared",
        "modes",
        "token_verifier",
    )

    def __init__(
        self,
        settings: GatewaySettings,
        tenants: Tenants,
        metrics: CallerMetrics,
        token_verifier: TokenVerifier | None = None,
        backend: StateBackend = IN_MEMORY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`backend`: where limits are counted. `clock`: seconds since the epoch."""
        self.modes = frozenset(settings.auth.mode)
        self.token_verifier = token_verifier
        self._fusion = settings.fusion
        self._metrics = metrics
        self._clock = clock
        self._client_address = ClientAddress(settings.server.trusted_proxies)
        self._failed_auth = FailedAuthLimiter(settings.auth.max_failures, settings.state.max_addresses)
        self._quotas = Quotas(settings.state.max_addresses, backend.limiter)
        self._running: dict[tuple[str, ApiKey | str], set[RunningRequest]] = {}
        self._tenants: Mapping[str, Tenant] = {}
        self._by_roles: dict[tuple[str, frozenset[str]], Tenant] = {}
        self._keyring = ApiKeys({})
        self.declared = tenants
        """The tenants as the tenants file declares them."""
        self.replace(tenants)

    def replace(self, tenants: Tenants, fusion: FusionSettings | None = None) -> int:
        """Replace the tenants, and cancel the requests of revoked credentials; returns how many there were.

        `fusion`: the settings that tenants override (None: unchanged).
        """
        self.declared = tenants
        self._fusion = fusion or self._fusion
        self._keyring = ApiKeys(tenants.by_id)
        self._tenants = {name: tenant_of(name, entry, self._fusion) for name, entry in tenants.by_id.items()}
        self._by_roles = {}
        self._metrics.declare(self._tenants)
        ended = [
            running for holder, requests in self._running.items() if not self._is_valid(*holder) for running in requests
        ]
        for running in ended:
            running.expire()
        if ended:
            logger().warning("callers_revoked", requests=len(ended))
        return len(ended)

    async def identify(self, scope: Scope) -> Principal:
        """The caller of a request, by its credential or as anonymous. Raises AuthError."""
        try:
            credential = credential_of(scope["headers"])
        except MalformedCredential as fault:
            self._refuse_unknown(scope, str(fault), "invalid_request")
        if credential is None:
            tenant = self._tenants.get(ANONYMOUS)
            if tenant is None:
                self._refuse_unknown(scope, "a credential is required: Authorization: Bearer, or X-API-Key", None)
            # Anonymous callers share a tenant, so their limits are counted by address.
            return Principal(tenant, ANONYMOUS, None, Owner(ANONYMOUS, self._client_address.address(scope)))
        key = self._keyring.owner(credential.token, self._clock()) if "keys" in self.modes else None
        if key is not None:
            return Principal(self._tenants[key.tenant], key, key.id, Owner(key.tenant))
        return await self._token_principal(scope, credential)

    def enter(self, principal: Principal) -> RunningRequest:
        """Register a request in the current task; until `leave`, revoking the credential cancels that task."""
        running = RunningRequest((principal.tenant.id, principal.key_id or ""))
        self._running.setdefault((principal.tenant.id, principal.holder), set()).add(running)
        return running

    def leave(self, principal: Principal, running: RunningRequest) -> None:
        """The request has ended. Must be called once for each `enter`, in the same task."""
        running.end()
        holder = (principal.tenant.id, principal.holder)
        requests = self._running[holder]
        requests.discard(running)
        if not requests:
            del self._running[holder]
        if principal.taken:
            self._quotas.give_back(principal.owner, principal.tenant.limits, principal.taken)

    async def spend(self, principal: Principal, message: Any) -> None:
        """Check role and limits of a message, and count it against the limits. Raises AuthError."""
        self.check_role(principal, message)
        limits = principal.tenant.limits
        if limits.none:
            return
        count = len(message) if type(message) is list and message else 1
        most = at_once(limits)
        if most is not None and count > most:
            # Not a 429: the batch would exceed the limit at any time, so a retry is useless.
            fault = InvalidParams(f"a batch of this caller may contain at most {most} messages", field="batch")
            self._refuse(principal, "requests", 200, fault)
        reached = await self._quotas.take(principal.owner, limits, count)
        if reached is not None:
            self._refuse_limited(principal, reached)
        principal.taken = count

    def check_role(self, principal: Principal, message: Any) -> None:
        """Raises AuthError if the caller does not have the role that this message requires."""
        missing = _missing_role(principal.tenant, message)
        if missing is not None:
            self._refuse(principal, "forbidden", 403, missing)

    async def reserve_hits(self, caller: Caller, hits: int, seconds: float) -> Reservation | None:
        """Reserve the hits that a request may return, for at most `seconds`; None if hits are not limited.

        Raises RateLimited. Without a reservation, concurrent requests could together exceed `limits.hits_per_day`.
        """
        tenant = caller.tenant
        if tenant is None or tenant.limits.hits_per_day is None:
            return None
        reserved = await self._quotas.reserve_hits(_owner_of(tenant, caller), tenant.limits, hits, seconds)
        if isinstance(reserved, Reached):
            self._metrics.refusal(tenant.id, reserved.bound)
            raise RateLimited(
                "this request may return more hits than the caller has left today", **_retry(reserved.seconds)
            )
        return reserved

    async def release_hits(self, caller: Caller, reservation: Reservation, hits: int) -> None:
        """Give back the reserved hits that the answer did not contain; it contained `hits`."""
        if caller.tenant is not None:
            await self._quotas.settle_hits(_owner_of(caller.tenant, caller), reservation, hits)

    def start(self) -> None:
        """Start background work."""
        if self.token_verifier is not None:
            self.token_verifier.start()

    async def close(self) -> None:
        """Stop background work."""
        if self.token_verifier is not None:
            await self.token_verifier.close()

    async def admin(self, scope: Scope) -> Principal:
        """The caller of a request, which must have the role `admin`. Raises AuthError."""
        principal = await self.identify(scope)
        if ADMIN not in principal.tenant.roles:
            self._refuse(principal, "forbidden", 403, Unauthorized(f"this requires the role '{ADMIN}'"))
        return principal

    async def _token_principal(self, scope: Scope, credential: Credential) -> Principal:
        said = None
        if self.token_verifier is not None and credential.may_be_jwt:
            try:
                said = await self.token_verifier.tenant_of(credential.token)
            except BackendUnavailable as fault:
                raise AuthError(503, fault, (b"retry-after", b"5")) from None
        if said is None:
            self._refuse_unknown(scope, "the credential is not valid", "invalid_token")
        tenant_id, roles, key_id = said
        # After the await: a reload may have removed the tenant while the token was verified.
        tenant = self._tenants.get(tenant_id)
        if tenant is None or tenant_id == ANONYMOUS:
            self._refuse_unknown(scope, "the credential is not valid", "invalid_token")
        return Principal(self._with_roles(tenant, roles), "jwt", key_id, Owner(tenant_id))

    def _with_roles(self, tenant: Tenant, roles: frozenset[str] | None) -> Tenant:
        """The tenant with only those of its roles that the token has, too."""
        if roles is None or roles >= tenant.roles:
            return tenant
        # Cached, so that equal callers are the same object and caches by tenant hit.
        allowed = roles & tenant.roles
        narrowed = self._by_roles.get((tenant.id, allowed))
        if narrowed is None:
            narrowed = self._by_roles[tenant.id, allowed] = replace(tenant, roles=allowed)
        return narrowed

    def _is_valid(self, tenant_id: str, holder: ApiKey | str) -> bool:
        # A text stands for `anonymous` or a token, whose validity follows its tenant; a key can be revoked by itself.
        return tenant_id in self._tenants and (isinstance(holder, str) or self._keyring.holds(holder))

    def _refuse_unknown(self, scope: Scope, message: str, error: str | None) -> NoReturn:
        """Refuse a caller without valid credential: 401, or 429 after too many failures of its address."""
        self._metrics.refusal(None, "unauthenticated")
        seconds = self._failed_auth.failed(self._client_address.address(scope))
        if seconds:
            fault = RateLimited("too many failed authentications from this address", **_retry(seconds))
            raise AuthError(429, fault, _retry_after(seconds), quiet=True)
        challenge = b'Bearer realm="rcp"' + (f', error="{error}"'.encode() if error else b"")
        raise AuthError(401, Unauthorized(message), (b"www-authenticate", challenge))

    def _refuse_limited(self, principal: Principal, reached: Reached) -> NoReturn:
        fault = RateLimited(_LIMIT_MESSAGES[reached.bound], **_retry(reached.seconds))
        self._refuse(principal, reached.bound, 429, fault, _retry_after(reached.seconds))

    def _refuse(
        self, principal: Principal, reason: str, status: int, fault: Any, *headers: tuple[bytes, bytes]
    ) -> NoReturn:
        self._metrics.refusal(principal.tenant.id, reason)
        raise AuthError(status, fault, *headers, principal=principal)

    def __repr__(self) -> str:
        in_flight = sum(map(len, self._running.values()))
        modes = "+".join(sorted(self.modes))
        return (
            f"<Authenticator {modes}, {len(self._tenants)} tenants, {len(self._keyring)} keys, {in_flight} in flight>"
        )


def _owner_of(tenant: Tenant, caller: Caller) -> Owner:
    return Owner(tenant.id, caller.address if tenant.id == ANONYMOUS else "")


def _missing_role(tenant: Tenant, message: Any) -> Unauthorized | None:
    """The error of a single request that requires a role which the tenant does not have.

    Members of a batch are checked one by one by the dispatcher, since each has a response of its own.
    """
    method = message.get("method") if type(message) is dict else None
    # Notifications are not answered, so they are not refused here either.
    if type(method) is str and ("id" in message or "jsonrpc" not in message):
        try:
            tenant.check(method)
        except Unauthorized as fault:
            return fault
    return None


def _retry(seconds: float) -> dict[str, Any]:
    return {"retryable": True, "retryAfterMs": max(1, ceil(seconds * 1000))}


def _retry_after(seconds: float) -> tuple[bytes, bytes]:
    return b"retry-after", b"%d" % max(1, ceil(seconds))


class FailedAuthLimiter:
    """Counts failed authentications by client address. Beyond `max_addresses`, the least recently seen is evicted.

    It never blocks a valid credential: clients behind one address must not be able to lock each other out.
    """

    __slots__ = ("_clock", "_failures", "_max_addresses", "_most")

    def __init__(self, most: int, max_addresses: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: allowed failures of one address within `FAILURE_WINDOW`. `clock`: monotonic, in seconds."""
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._most = most
        self._max_addresses = max_addresses
        self._clock = clock

    def failed(self, address: str) -> float:
        """Count one failure. Returns 0, or the seconds until the address may try again."""
        now = self._clock()
        count, end = self._failures.get(address, (0, now + FAILURE_WINDOW))
        if end <= now:
            count, end = 0, now + FAILURE_WINDOW
        self._failures[address] = (count + 1, end)
        self._failures.move_to_end(address)
        if len(self._failures) > self._max_addresses:
            self._failures.popitem(last=False)
        return 0.0 if count < self._most else end - now

    def __len__(self) -> int:
        return len(self._failures)

    def __repr__(self) -> str:
        return f"<FailedAuthLimiter {len(self)}/{self._max_addresses} addresses>"
