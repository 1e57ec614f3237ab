"""A question begun without waiting, and what is needed to end it (room engines).

It decides nothing: the engine that began it reads the answer. It refuses to know what the question was.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from app.engines.replicas import Replica
from app.engines.transport import Reply, TransportExchange
from app.protocol.errors import LegError, LegTimeout

if TYPE_CHECKING:
    from app.engines.engine import RemoteEngine


@final
class InFlightCall:
    """A call under way without a task of its own. Exactly one of `take`, `late` and `drop` must end it."""

    __slots__ = ("engine", "exchange", "fault", "generation", "method", "params", "pending", "replica")

    def __init__(
        self,
        engine: "RemoteEngine",
        method: str,
        params: Mapping[str, Any],
        replica: Replica,
        exchange: TransportExchange,
        generation: int,
    ) -> None:
        self.pending = exchange.pending
        self.engine = engine
        self.method = method
        self.params = params
        self.replica = replica
        self.exchange = exchange
        self.generation = generation
        self.fault: LegError | None = None
        """After `take` gave None: why the question may be asked once more, which `call` wants to know."""

    def take(self) -> Reply | None:
        """The answer, once `waiter` is done; None if the question may be asked once more. Raises LegError."""
        return self.engine.finish(self)

    def late(self, given: float) -> LegTimeout:
        """Its `given` seconds are over: the fault of its leg."""
        fault = self.engine.abandon(self, given)
        assert fault is not None
        return fault

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.engine.abandon(self, None)

    def __repr__(self) -> str:
        return f"<Asked {self.engine.id} {self.method}: {self.exchange!r}>"
