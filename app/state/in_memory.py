"""The state of a gateway that shares it with nobody: every store is the one in this process.

The counterpart of `state/shared.py`. It refuses to know what is kept.
"""

from collections.abc import Callable

from app.state.memory_store import MemoryStore
from app.state.rate_limit import LocalLimiter
from app.state.store import Store
from app.state.sums import Sums


class InMemoryState:
    """Satisfies `state.store.Sharing`."""

    __slots__ = ()

    @property
    def degraded(self) -> bool:
        """Never: there is nobody to be cut off from."""
        return False

    def store(
        self,
        use: str,
        local: MemoryStore,
        *,
        constant: bool = False,
        max_bytes: int | None = None,
        permanent: bool = False,
    ) -> Store:
        """`local` as it is."""
        return local

    def limiter(self, max_entries: int, clock: Callable[[], float]) -> LocalLimiter:
        """Where limits are counted."""
        return LocalLimiter(max_entries, clock)

    def sums(self) -> Sums | None:
        """Nowhere."""
        return None

    async def start(self) -> None:
        """Nothing is to be reached."""

    async def close(self) -> None:
        """Nothing is held."""

    def __repr__(self) -> str:
        return "<Alone>"


ALONE = InMemoryState()
