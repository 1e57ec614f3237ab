"""The registry of requests in flight that `notifications/cancel` (RCP §7) can cancel.

Requests are registered by session and id, so that no caller can cancel a request of another session. A cancelled
request is answered once, with -32006.
"""

from app.protocol.envelope import RequestId
from app.resilience.cancel_scope import CancelScope

MessageId = RequestId


class RunningRequest(CancelScope):
    """One request in flight, created in the task that answers it. `come` is true once it was cancelled."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[str, MessageId]) -> None:
        super().__init__()
        self.key = key

    def __repr__(self) -> str:
        return f"<RunningRequest {self.key[1]!r}{' cancelled' if self.come else ''}>"


class RunningRequests:
    """The cancellable requests in flight in this process.

    Each worker and each gateway knows its own only: a cancellation that reaches another one is ignored.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[tuple[str, MessageId], list[RunningRequest]] = {}

    def enter(self, session: str, message_id: MessageId) -> RunningRequest:
        """Register a request in the current task. `leave` must follow."""
        # A list: JSON-RPC does not stop a client from using an id twice at a time, and a cancel then means both.
        running = RunningRequest((session, message_id))
        self._running.setdefault(running.key, []).append(running)
        return running

    def leave(self, running: RunningRequest) -> None:
        """The request has ended. Must be called once for each `enter`, in the same task."""
        running.end()
        same = self._running[running.key]
        same.remove(running)
        if not same:
            del self._running[running.key]

    def cancel(self, session: str, message_id: MessageId) -> int:
        """Cancel the requests of this session and id, and return how many there were."""
        found = self._running.get((session, message_id), ())
        for running in found:
            running.expire()
        return len(found)

    def cancel_only(self, scope: str, message_id: MessageId) -> int:
        """Like `cancel`, in a scope that several callers may share: if two requests have this id, none is cancelled,
        because it is unknown which one is meant."""
        return self.cancel(scope, message_id) if len(self._running.get((scope, message_id), ())) == 1 else 0

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def __repr__(self) -> str:
        return f"<RunningRequests {len(self)} requests of {len({session for session, _ in self._running})} sessions>"
