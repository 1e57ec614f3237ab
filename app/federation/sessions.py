"""Sessions (RCP §7.7): which hits a trajectory of questions has been answered already, so that none is answered twice.

Offered by the gateway itself, whatever the engines do. It decides what is forgotten first; it refuses to know how lists
are fused and where sessions are kept.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

from app.federation.tenants import Tenant
from app.state.store import Store

PREFIX = "session:"


class Trajectory:
    """What one session has been answered before, as one question sees it.

    The question's own hits do not count, whichever of its pages they stood on: a page may be asked for again.
    """

    __slots__ = ("_owners", "root")

    def __init__(self, owners: Mapping[str, str], root: str) -> None:
        """`owners`: key of a hit -> the question it was answered to; `root`: the present question."""
        self._owners = owners
        self.root = root

    def __contains__(self, key: object) -> bool:
        owner = self._owners.get(key)  # type: ignore[call-overload]
        return owner is not None and owner != self.root

    def __len__(self) -> int:
        return len(self._owners)

    def __repr__(self) -> str:
        return f"<Trajectory of {len(self)} hits>"


class RetrieveSessions:
    """The sessions under way. A session lives for `seconds` after its last answer."""

    __slots__ = ("_max_keys", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_keys: int) -> None:
        """A session remembers at most `max_keys` hits; the oldest are forgotten first."""
        self._store = store
        self._seconds = seconds
        self._max_keys = max_keys

    async def trajectory(self, session_id: str, root: str) -> Trajectory:
        """What this session has seen; `root` names the question that asks."""
        return Trajectory(await self._store.get(PREFIX + session_id, _as_it_is) or {}, root)

    async def remember(self, session_id: str, root: str, keys: Iterable[str]) -> None:
        """The question `root` was answered with the hits of these keys. Renews the session's time."""
        given = tuple(keys)

        def change(owners: dict[str, str] | None) -> dict[str, str]:
            owners = {} if owners is None else owners
            owners.update([(key, owners.get(key, root)) for key in given])
            for key in list(islice(owners, max(0, len(owners) - self._max_keys))):
                del owners[key]
            return owners

        await self._store.change(PREFIX + session_id, change, self._seconds, _as_it_is, _as_it_is, size=_size)

    def __repr__(self) -> str:
        return f"<Sessions for {self._seconds:g} s in {self._store!r}>"


def scoped(identity: str, session_id: str, tenant: Tenant | None = None) -> str:
    """The session id that engines see: the same for the same session, and telling nothing about the caller's own.

    Sessions of two tenants are never the same.
    """
    owner = identity if tenant is None else f"{identity}\0{tenant.id}"
    return blake2b(f"{owner}\0{session_id}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def scoped_key(key: str, tenant: Tenant) -> str:
    """The `idempotencyKey` that engines see: equal keys of two tenants are two calls."""
    return blake2b(f"{tenant.id}\0{key}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _size(owners: dict[str, str]) -> int:
    return len(owners) + 1


def _as_it_is(value: Any) -> Any:
    return value
