"""A bound on the bytes of engine answers that all requests together hold in memory.

A request holds what its engines have sent until it is answered. At the limit, new requests wait, and those under way
stop reading from their engines. The oldest request always reads on, so that they cannot wait for each other.
"""

import asyncio
import ctypes
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, final

from app.resilience.cancel_scope import Timeout

GIVE_BACK_SECONDS: Final = 1.0
"""After the last large answer, before freed memory is given back to the system."""
LARGE: Final = 16
"""With more than a `LARGE`th of the limit held, there is memory worth giving back afterwards."""


class BudgetExhausted(Exception):
    """The bytes held did not fall below the limit in time."""


@final
class HeldBytes:
    """What one request holds. `release` must follow."""

    __slots__ = ("_budget", "_ended", "_paused", "held", "waited")

    def __init__(self, budget: "ByteBudget") -> None:
        self._budget = budget
        self._paused: list[Callable[[], None]] = []
        self._ended = False
        self.held = 0
        self.waited = False
        """Whether an engine's answer had to wait: a timeout then says nothing about that engine."""

    def take(self, size: int) -> None:
        """So many bytes more have been received. What comes for a request that has ended is not held."""
        if not self._ended:
            self.held += size
            self._budget.add(size)

    def may_read(self) -> bool:
        """Whether more may be received now. If not, `pause` until it may."""
        return self._budget.held < self._budget.limit or self._budget.is_oldest(self)

    def pause(self, resume: Callable[[], None]) -> None:
        """Let `resume` be called when more may be received. It must not mind to be called too late."""
        self.waited = True
        self._paused.append(resume)
        self._budget.paused(self)

    def resume(self) -> None:
        """Call whoever has paused."""
        paused, self._paused = self._paused, []
        for resume in paused:
            resume()

    def release(self) -> None:
        """The request is answered, or has failed."""
        self._ended = True
        self._paused.clear()
        self._budget.leave(self)

    def __repr__(self) -> str:
        return f"<HeldBytes {self.held}, {len(self._paused)} answers paused>"


HELD: ContextVar[HeldBytes | None] = ContextVar("held_bytes", default=None)
"""What the request that is being answered holds."""


def hold(size: int) -> None:
    """An answer of so many bytes has come for the request that is being answered."""
    holder = HELD.get()
    if holder is not None:
        holder.take(size)


def give_memory_back() -> None:
    """Return freed memory to the system: glibc keeps all that lies below a block in use."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return
    trim(0)


@final
class ByteBudget:
    """The bytes that all requests of one gateway hold. Belongs to one event loop."""

    __slots__ = (
        "_give_back",
        "_holders",
        "_most",
        "_paused",
        "_pausing",
        "_queue",
        "_timer",
        "_watch",
        "held",
        "limit",
    )

    def __init__(
        self,
        limit: int,
        *,
        watch: Callable[[int], None] = lambda held: None,
        pausing: Callable[[], None] = lambda: None,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """`watch` hears how many bytes are held each time a request ends or an answer waits, `pausing` of the latter.

        `give_back` is called some time after much memory was freed; by default it returns it to the system.
        """
        self.limit = limit
        self.held = 0
        self._holders: dict[HeldBytes, None] = {}  # the oldest first
        self._paused: set[HeldBytes] = set()
        self._queue: dict[asyncio.Future[None], None] = {}
        self._watch = watch
        self._pausing = pausing
        self._give_back = give_back or give_memory_back
        self._most = 0
        self._timer: asyncio.TimerHandle | None = None

    def try_enter(self) -> HeldBytes | None:
        """Begin a request; None if it has to wait."""
        if self.held >= self.limit or self._queue:
            return None
        holder = HeldBytes(self)
        self._holders[holder] = None
        return holder

    async def enter(self, deadline: float) -> HeldBytes:
        """Begin a request as soon as less than the limit is held, in turn. Raises BudgetExhausted at `deadline`.

        `deadline` is in event-loop seconds.
        """
        turn = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        expiry = Timeout(deadline)
        try:
            await turn
        except asyncio.CancelledError:
            if not expiry.is_the_cause():
                raise
            raise BudgetExhausted from None
        finally:
            expiry.end()
            self._queue.pop(turn, None)
            self._begin_next()
        holder = HeldBytes(self)
        self._holders[holder] = None
        return holder

    def is_oldest(self, holder: HeldBytes) -> bool:
        """Whether no request under way began before this one."""
        return next(iter(self._holders)) is holder

    def add(self, size: int) -> None:
        """One of the holders took so many bytes."""
        self.held += size
        if self.held > self._most:
            self._most = self.held

    def paused(self, holder: HeldBytes) -> None:
        """An engine's answer has to wait."""
        self._paused.add(holder)
        self._pausing()
        self._watch(self.held)

    def leave(self, holder: HeldBytes) -> None:
        """A request has ended: others go on."""
        del self._holders[holder]
        self.held -= holder.held
        self._paused.discard(holder)
        if self._paused:
            self._read_on()
        self._begin_next()
        self._watch(self.held)
        if self._most > self.limit // LARGE and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GIVE_BACK_SECONDS, self._return_memory)

    def _read_on(self) -> None:
        """Let those who have paused read on, the oldest first, as far as there is room."""
        for holder in [holder for holder in self._holders if holder in self._paused]:
            if not holder.may_read():
                return
            self._paused.discard(holder)
            holder.resume()

    def _begin_next(self) -> None:
        """Let the first who waits begin, if there is room. It lets the next begin."""
        if self.held < self.limit and self._queue:
            turn = next(iter(self._queue))
            if not turn.done():
                turn.set_result(None)

    def _return_memory(self) -> None:
        """Give back what was freed, or look again later while much is held."""
        self._timer = None
        if self.held > self.limit // LARGE:
            self._timer = asyncio.get_running_loop().call_later(GIVE_BACK_SECONDS, self._return_memory)
        else:
            self._most = self.held
            self._give_back()

    def __repr__(self) -> str:
        return f"<ByteBudget {self.held}/{self.limit} bytes held by {len(self._holders)}, {len(self._queue)} waiting>"
