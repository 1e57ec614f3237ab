"""The result of authentication: the caller as a `Principal`, or an `AuthError` with the HTTP status to send.

Endpoints depend on these values and not on how callers are authenticated.
"""

from typing import TYPE_CHECKING

from app.api.auth.keys import ApiKey
from app.federation.tenants import Tenant
from app.protocol.errors import RcpError

if TYPE_CHECKING:
    from app.state.quotas import Owner


class Principal:
    """One authenticated caller of one HTTP request."""

    __slots__ = ("holder", "key_id", "owner", "taken", "tenant")

    def __init__(self, tenant: Tenant, holder: ApiKey | str, key_id: str | None, owner: "Owner") -> None:
        """`holder` is the credential: the request is cancelled if it is revoked. `key_id` names it in the log."""
        self.tenant = tenant
        self.holder = holder
        self.key_id = key_id
        self.owner = owner
        # Requests in flight that count against `limits.concurrent`: a batch counts once per member.
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Principal of {self.tenant.id} with {self.key_id or 'no credential'}, {self.taken} limited requests>"


class AuthError(Exception):
    """A refused caller: the HTTP status, the error of RCP §12, and the response headers that belong to it.

    `quiet` refusals are not logged: a client can cause any number of them.
    """

    def __init__(
        self,
        status: int,
        fault: RcpError,
        *headers: tuple[bytes, bytes],
        principal: Principal | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(status, fault)
        self.status = status
        self.fault = fault
        self.headers = headers
        self.principal = principal
        self.quiet = quiet

    def __repr__(self) -> str:
        return f"AuthError({self.status}, {self.fault!r})"
