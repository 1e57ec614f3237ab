"""Carries out a write with an `idempotencyKey` once, and answers repetitions with the same result (RCP §7.10, §7.11).

A repetition while the first call is in progress is refused. A failed call is forgotten, so that it can be retried with
its key.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from secrets import token_hex
from typing import Any, NamedTuple

from app.federation.calls import MethodCall
from app.protocol.documents import read_idempotency_key
from app.protocol.envelope import canonical
from app.protocol.errors import Conflict
from app.settings.state import StateSettings
from app.state.store import IN_MEMORY, MemoryStore, StateBackend, Store

Result = dict[str, Any]

PREFIX = "idempotency:"
RETRY_MS = 1000
MARGIN_SECONDS = 5.0
"""A claim outlives the deadline of its call by this. After that its process must be gone, and another may take over."""

IDS_EACH = 100
"""So many ids of a result count as one entry of the store's size."""


class StoredResult(NamedTuple):
    """One call under a key: its fingerprint, the process that carries it out, and its result (None: in progress)."""

    fingerprint: str
    claim: str
    result: Result | None = None


class Idempotency:
    """The keyed calls of one gateway, or of all gateways that share its state."""

    __slots__ = ("_seconds", "_store")

    def __init__(self, store: Store, seconds: float) -> None:
        """A result is remembered for `seconds`."""
        self._store = store
        self._seconds = seconds

    @classmethod
    def from_settings(cls, settings: StateSettings, backend: StateBackend = IN_MEMORY) -> "Idempotency":
        """A store with the configured bounds, in `backend`."""
        limit = settings.max_idempotency_keys
        return cls(backend.store("idempotency", MemoryStore(limit, limit * IDS_EACH)), settings.idempotency_ttl_seconds)

    async def once(self, call: MethodCall, execute: Callable[[], Awaitable[Result]], endpoint: str = "") -> Result:
        """The result of `call`, carried out now or before; keys are separate for each tenant and endpoint.

        Raises Conflict (-32016) if the key was used for another call, or if this one is in progress; and what `execute`
        raises.
        """
        # Without a key there is nothing to remember, and repetitions are the caller's decision.
        key = read_idempotency_key(call.passed_on)
        if key is None:
            return await execute()
        name = _name(call, endpoint, key)
        claimed = StoredResult(_fingerprint_of(call), token_hex(8))
        # The claim must not expire while the call can still be in progress.
        seconds = max(0.0, call.deadline - asyncio.get_running_loop().time()) + MARGIN_SECONDS

        def claim(before: StoredResult | None) -> StoredResult | None:
            return claimed if before is None else None

        # The claim is atomic across replicas: only one of two concurrent calls carries it out.
        found = await self._store.change(name, claim, seconds, _load, list, size=_size)
        if found is not None and found.claim != claimed.claim:
            return _remembered(found, claimed)
        try:
            result = await execute()
        # Also on cancellation: the caller may retry with its key at once.
        except BaseException:
            await self._store.delete(name)
            raise
        done = claimed._replace(result=result)
        await self._store.put(name, done, self._seconds, list, size=_size(done))
        return result

    def __repr__(self) -> str:
        return f"<Idempotency for {self._seconds:g} s in {self._store!r}>"


def _remembered(found: StoredResult, claimed: StoredResult) -> Result:
    """The result of the call that used the key first. Raises Conflict."""
    field = "_meta.idempotencyKey"
    if found.fingerprint != claimed.fingerprint:
        raise Conflict("this idempotencyKey was used for another call; use a new key", field=field, retryable=False)
    if found.result is None:
        raise Conflict(
            "the call with this idempotencyKey is in progress", field=field, retryable=True, retryAfterMs=RETRY_MS
        )
    return found.result


def _name(call: MethodCall, endpoint: str, key: str) -> str:
    tenant = "" if call.tenant is None else call.tenant.id
    return PREFIX + blake2b(f"{tenant}\0{endpoint}\0{key}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _fingerprint_of(call: MethodCall) -> str:
    """What makes two calls the same: the method, and the params without `_meta`."""
    # `_meta` differs between repetitions (deadline, trace context) and does not change what is written.
    params = {name: value for name, value in call.params.items() if name != "_meta"}
    return blake2b(canonical([call.method, params]), digest_size=20).hexdigest()


def _size(carried: StoredResult) -> int:
    ids = None if carried.result is None else carried.result.get("ids")
    return 1 + (len(ids) // IDS_EACH if type(ids) is list else 0)


def _load(plain: list[Any]) -> StoredResult:
    return StoredResult(*plain)
