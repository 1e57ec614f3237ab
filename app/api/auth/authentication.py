"""Authentication: credential -> tenant -> role -> limits.

Callers under way are known until they leave, so that revoking a credential also ends what it began.
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
"""Seconds in which failed authentications of an address are counted, from the first one."""

_LIMIT_MESSAGES = {
    "requests": "this caller has asked too often",
    "concurrent": "too many requests of this caller are under way",
    "hits": "this caller has been answered all the hits of its day",
}


class TokenVerifier(Protocol):
    """Who can tell whose token it is (`api/tokens.py`)."""

    async def tenant_of(self, token: bytes) -> tuple[str, frozenset[str] | None, str] | None:
        """(tenant, roles or None for all of its, id of the key); None for a token that is not believed.

        Raises BackendUnavailable while nobody can tell.
        """
        ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class Authenticator:
    """Stands at the doors of one gateway whose callers are told apart."""

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
        """`sharing`: with whom limits are counted. `clock`: seconds since the epoch."""
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
        """As the tenants file has them."""
        self.replace(tenants)

    def replace(self, tenants: Tenants, fusion: FusionSettings | None = None) -> int:
        """From now on these are the tenants, whose own wishes for the fusion are laid over `fusion` (None: as before).

        Ends whatever a credential began that is no longer good; how many.
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
        """Who calls. Raises TurnedAway."""
        try:
            credential = credential_of(scope["headers"])
        except MalformedCredential as fault:
            self._refuse_unknown(scope, str(fault), "invalid_request")
        if credential is None:
            tenant = self._tenants.get(ANONYMOUS)
            if tenant is None:
                self._refuse_unknown(scope, "a credential is needed: Authorization: Bearer, or X-API-Key", None)
            return Principal(tenant, ANONYMOUS, None, Owner(ANONYMOUS, self._client_address.address(scope)))
        key = self._keyring.owner(credential.token, self._clock()) if "keys" in self.modes else None
        if key is not None:
            return Principal(self._tenants[key.tenant], key, key.id, Owner(key.tenant))
        return await self._token_principal(scope, credential)

    def enter(self, principal: Principal) -> RunningRequest:
        """A caller goes in, in the current task; until it leaves, taking its credential away cancels that task."""
        running = RunningRequest((principal.tenant.id, principal.key_id or ""))
        self._running.setdefault((principal.tenant.id, principal.holder), set()).add(running)
        return running

    def leave(self, principal: Principal, running: RunningRequest) -> None:
        """It is over; must be called for everyone that entered, in its task."""
        running.end()
        holder = (principal.tenant.id, principal.holder)
        requests = self._running[holder]
        requests.discard(running)
        if not requests:
            del self._running[holder]
        if principal.taken:
            self._quotas.give_back(principal.owner, principal.tenant.limits, principal.taken)

    async def spend(self, principal: Principal, message: Any) -> None:
        """Whether the caller may ask this now; counts it if so. Raises TurnedAway."""
        self.check_role(principal, message)
        limits = principal.tenant.limits
        if limits.none:
            return
        count = len(message) if type(message) is list and message else 1
        most = at_once(limits)
        if most is not None and count > most:
            fault = InvalidParams(f"a batch of this caller may hold at most {most} messages", field="batch")
            self._refuse(principal, "requests", 200, fault)
        reached = await self._quotas.take(principal.owner, limits, count)
        if reached is not None:
            self._refuse_limited(principal, reached)
        principal.taken = count

    def check_role(self, principal: Principal, message: Any) -> None:
        """Raises AuthError if the caller lacks the role that this message needs."""
        lacking = _missing_role(principal.tenant, message)
        if lacking is not None:
            self._refuse(principal, "forbidden", 403, lacking)

    async def reserve_hits(self, caller: Caller, hits: int, seconds: float) -> Reservation | None:
        """Set aside what a request of at most `seconds` may be answered of its day's hits; None where none are limited.

        Raises RateLimited.
        """
        tenant = caller.tenant
        if tenant is None or tenant.limits.hits_per_day is None:
            return None
        reserved = await self._quotas.reserve_hits(_owner_of(tenant, caller), tenant.limits, hits, seconds)
        if isinstance(reserved, Reached):
            self._metrics.refusal(tenant.id, reserved.bound)
            raise RateLimited(
                "this request may be answered more hits than are left of the caller's day", **_retry(reserved.seconds)
            )
        return reserved

    async def release_hits(self, caller: Caller, reservation: Reservation, hits: int) -> None:
        """So many hits were answered of those that were reserved."""
        if caller.tenant is not None:
            await self._quotas.settle_hits(_owner_of(caller.tenant, caller), reservation, hits)

    def start(self) -> None:
        """Begin what goes on in the background."""
        if self.token_verifier is not None:
            self.token_verifier.start()

    async def close(self) -> None:
        """End it."""
        if self.token_verifier is not None:
            await self.token_verifier.close()

    async def admin(self, scope: Scope) -> Principal:
        """Who calls, if it has the role `admin`. Raises TurnedAway."""
        principal = await self.identify(scope)
        if ADMIN not in principal.tenant.roles:
            self._refuse(principal, "forbidden", 403, Unauthorized(f"this needs the role '{ADMIN}'"))
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
        tenant = self._tenants.get(tenant_id)  # only now: it may have been taken away while the token was looked at
        if tenant is None or tenant_id == ANONYMOUS:
            self._refuse_unknown(scope, "the credential is not valid", "invalid_token")
        return Principal(self._with_roles(tenant, roles), "jwt", key_id, Owner(tenant_id))

    def _with_roles(self, tenant: Tenant, roles: frozenset[str] | None) -> Tenant:
        if roles is None or roles >= tenant.roles:
            return tenant
        allowed = roles & tenant.roles
        narrowed = self._by_roles.get((tenant.id, allowed))
        if narrowed is None:
            narrowed = self._by_roles[tenant.id, allowed] = replace(tenant, roles=allowed)
        return narrowed

    def _is_valid(self, tenant_id: str, holder: ApiKey | str) -> bool:
        return tenant_id in self._tenants and (isinstance(holder, str) or self._keyring.holds(holder))

    def _refuse_unknown(self, scope: Scope, message: str, error: str | None) -> NoReturn:
        """Turn somebody away whom nobody knows: 401, or 429 for an address that has been so too often."""
        self._metrics.refusal(None, "unauthenticated")
        seconds = self._failed_auth.failed(self._client_address.address(scope))
        if seconds:
            fault = RateLimited("too many wrong credentials from this address", **_retry(seconds))
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
        inside = sum(map(len, self._running.values()))
        modes = "+".join(sorted(self.modes))
        return f"<Guard {modes}, {len(self._tenants)} tenants, {len(self._keyring)} keys, {inside} callers inside>"


def _owner_of(tenant: Tenant, caller: Caller) -> Owner:
    return Owner(tenant.id, caller.address if tenant.id == ANONYMOUS else "")


def _missing_role(tenant: Tenant, message: Any) -> Unauthorized | None:
    """The refusal of a single request for want of a role; members of a batch are refused each for itself."""
    method = message.get("method") if type(message) is dict else None
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
    """Failed authentications by client address; beyond `max_addresses` the least recently seen are evicted.

    A valid credential is accepted whatever other clients at the same address do.
    """

    __slots__ = ("_clock", "_failures", "_max_addresses", "_most")

    def __init__(self, most: int, max_addresses: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: failures of one address within `FAILURE_WINDOW`; `clock` in seconds."""
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._most = most
        self._max_addresses = max_addresses
        self._clock = clock

    def failed(self, address: str) -> float:
        """Count one failure: 0, or the seconds until the address may try again if there were too many."""
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
