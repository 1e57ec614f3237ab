"""One caller at a door: whom the guard let in, or why it did not.

Values between the guard and the doors. They refuse to know how callers are recognised, and how answers are written.
"""

from typing import TYPE_CHECKING

from app.api.auth.keys import ApiKey
from app.federation.tenants import Tenant
from app.protocol.errors import RcpError

if TYPE_CHECKING:
    from app.state.quotas import Owner


class Principal:
    """One caller that was let in. `taken` counts its requests that are limited and under way."""

    __slots__ = ("holder", "key_id", "owner", "taken", "tenant")

    def __init__(self, tenant: Tenant, holder: ApiKey | str, key_id: str | None, owner: "Owner") -> None:
        """`holder`: what must stay good for the visit to go on; `key_id` names the credential in the log."""
        self.tenant = tenant
        self.holder = holder
        self.key_id = key_id
        self.owner = owner
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Visit of {self.tenant.id} with {self.key_id or 'no credential'}, {self.taken} limited requests>"


class AuthError(Exception):
    """Somebody is not let in, or no further: the HTTP status, the error of RCP §12, and headers that go with it.

    `quiet`: it is not worth a line in the log.
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
        return f"TurnedAway({self.status}, {self.fault!r})"
