"""What the federation asks of an engine: an identity, the wishes of its registry entry, what it advertises, and a call.

The journey is written against this protocol alone; sockets and processes stay in the `engines` room.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError, LegTimeout
from app.settings.schema import EngineEntry


class EngineReply(Protocol):
    """The answer of one call: the JSON-RPC `result` and the number of requests it took."""

    @property
    def result(self) -> dict[str, Any]: ...

    @property
    def attempts(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def replica(self) -> str | None: ...

    @property
    def hedged(self) -> bool: ...


class PendingEngineReply(Protocol):
    """As much of a future as is asked of what a question waits for."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, told: Callable[[Any], None], /) -> None:
        """`told` is called once it is done, in whatever context; never, perhaps, if nobody wants the answer."""
        ...


class StartedCall(Protocol):
    """A question under way that no task waits for; ended by exactly one of `take`, `late` and `drop`."""

    @property
    def pending(self) -> PendingEngineReply:
        """Done once `take` may be called."""
        ...

    @property
    def fault(self) -> LegError | None:
        """Why the question may be asked once more, after `take` gave None."""
        ...

    def take(self) -> EngineReply | None:
        """The answer; None if the question may be asked once more, by `call`. Raises LegError."""
        ...

    def late(self, given: float) -> LegTimeout:
        """Its `given` seconds are over; the fault of its leg."""
        ...

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        ...


class Engine(Protocol):
    """One downstream engine. `advertisement` is the last known one, None before the first handshake."""

    @property
    def id(self) -> str: ...

    @property
    def entry(self) -> EngineEntry: ...

    @property
    def advertisement(self) -> Advertisement | None: ...

    @property
    def down_reason(self) -> str | None:
        """Why the first handshake has not succeeded yet, for the report; None once it has."""
        ...

    def begin(self, method: str, params: Mapping[str, Any]) -> StartedCall | None:
        """Ask at once if nothing has to be waited for; None if `call` must be used. Sets no deadline."""
        ...

    async def call(
        self,
        method: str,
        params: Mapping[str, Any],
        deadline: float,
        *,
        idempotent: bool = True,
        after: LegError | None = None,
    ) -> EngineReply:
        """Ask, and answer before `deadline` (event-loop seconds); `after`: the `fault` of an Asked. Raises LegError."""
        ...
