"""What must outlive one request, behind one small interface: values by key, each with an end and a size.

A store in this process keeps the values as they are; one outside it keeps what `dump` makes of them, plain data of
dict, list, str, numbers, booleans and None, and gives back what `load` makes of that. It refuses to know what it keeps.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from app.state.memory_store import MemoryStore
from app.state.rate_limit import Limiter
from app.state.sums import Sums

Value = TypeVar("Value")


class Store(Protocol):
    """Values by key. Whoever reads must cope with a value that is gone: bounds may take it before its time."""

    @property
    def degraded(self) -> bool:
        """Whether what others share cannot be read or written now: what is not found here may be there."""
        ...

    async def get(self, key: str, load: Callable[[Any], Value]) -> Value | None:
        """The value, or None if it was never there, is over or was let go."""
        ...

    async def put(self, key: str, value: Value, seconds: float, dump: Callable[[Value], Any], *, size: int = 1) -> None:
        """Keep `value` for so many seconds in place of any before; `size` is what it counts of the store's bound.

        `dump` is called only by a store that cannot keep the value itself. What is changed after `get` must be put
        again, or the change may be lost.
        """
        ...

    async def change(
        self,
        key: str,
        change: Callable[[Value | None], Value | None],
        seconds: float,
        load: Callable[[Any], Value],
        dump: Callable[[Value], Any],
        *,
        size: Callable[[Value], int],
    ) -> Value | None:
        """Keep what `change` makes of the value (None if there is none), so that of two changes none is lost.

        `change` may be called several times, may alter what it is given, and returns None to leave things as they are.
        What is kept then, as `put` and `get` would have it.
        """
        ...

    async def delete(self, key: str) -> None:
        """Let the value go, if it is there."""
        ...


class StateBackend(Protocol):
    """With whom the state is shared: opens stores and limiters, each with what stands in for it in this process."""

    @property
    def degraded(self) -> bool:
        """Whether what is shared is not at hand, so that every process is on its own."""
        ...

    def store(
        self,
        use: str,
        local: MemoryStore,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
        permanent: bool = False,
    ) -> Store:
        """Opens a store. `constant`: values never change; `max_bytes`: what is longer is kept in `local` alone;
        `lasting`: values stay when the registry changes."""
        ...

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> Limiter:
        """Where limits are counted, of at most so many keys in this process; `clock` in seconds."""
        ...

    def sums(self) -> Sums | None:
        """Where sums that several processes add to are shared; None: nowhere."""
        ...

    async def start(self) -> None:
        """Begin."""
        ...

    async def close(self) -> None:
        """End."""
        ...
