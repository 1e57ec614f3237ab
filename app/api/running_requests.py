"""Requests under way that `notifications/cancel` (RCP §7) can cancel, each within its own session.

Ids of different callers are not comparable, so nobody cancels the request of another session. A cancelled request is
answered once, with -32006.
"""

from app.protocol.envelope import RequestId
from app.resilience.cancel_scope import CancelScope

MessageId = RequestId


class RunningRequest(CancelScope):
    """One request under way, made in the task that answers it; `come` once it has been called off."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[str, MessageId]) -> None:
        super().__init__()
        self.key = key

    def __repr__(self) -> str:
        return f"<Running {self.key[1]!r}{' cancelled' if self.come else ''}>"


class RunningRequests:
    """The requests under way in this process that can be called off; holds no more than there are.

    Of several workers or gateways each knows its own: a cancel that reaches another is ignored, as an unknown id is.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[tuple[str, MessageId], list[RunningRequest]] = {}

    def enter(self, session: str, message_id: MessageId) -> RunningRequest:
        """A request begins, in the current task. A session may use an id twice at a time; both are then one to it."""
        running = RunningRequest((session, message_id))
        self._running.setdefault(running.key, []).append(running)
        return running

    def leave(self, running: RunningRequest) -> None:
        """It is over; must be called for everyone that entered, in its task."""
        running.end()
        same = self._running[running.key]
        same.remove(running)
        if not same:
            del self._running[running.key]

    def cancel(self, session: str, message_id: MessageId) -> int:
        """Call off the session's request with this id, and say how many there were; unknown ids are ignored."""
        found = self._running.get((session, message_id), ())
        for running in found:
            running.expire()
        return len(found)

    def cancel_only(self, scope: str, message_id: MessageId) -> int:
        """The same in a scope that several callers may share: of two requests with this id none is called off, since
        nobody can tell which is meant."""
        return self.cancel(scope, message_id) if len(self._running.get((scope, message_id), ())) == 1 else 0

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def __repr__(self) -> str:
        return f"<InFlight {len(self)} requests of {len({session for session, _ in self._running})} sessions>"
