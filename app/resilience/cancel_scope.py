"""Cancels the current task for one known reason, such as a deadline, distinguishable from every other cancellation."""

import asyncio


class CancelScope:
    """May cancel the task it is made in, once. The code that catches the CancelledError asks `is_the_cause`.

    If the caller has hung up or the server shuts down in the same moment, that takes precedence.
    """

    __slots__ = ("_cancelling", "_settled", "_task", "come")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self.come = False
        """Whether the task was cancelled from here."""
        self._settled = False
        self._task = task
        self._cancelling = task.cancelling()

    def expire(self) -> None:
        """Cancel the task; a second call changes nothing."""
        if not self.come:
            self.come = True
            self._task.cancel()

    def is_the_cause(self) -> bool:
        """Whether the CancelledError that was just caught comes from here alone; asked once, then it is settled."""
        if not self.come or self._settled:
            return False
        self._settled = True
        return self._task.uncancel() <= self._cancelling

    def end(self) -> None:
        """The work is over, one way or another; must always be called."""
        if self.come and not self._settled:
            self._settled = True
            self._task.uncancel()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'come' if self.come else 'pending'}>"


class Timeout(CancelScope):
    """Cancels the task it is made in at `deadline` (event-loop seconds) unless `end` is called before."""

    __slots__ = ("_timer",)

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._timer = asyncio.get_running_loop().call_at(deadline, self.expire)

    def end(self) -> None:
        """The work is over, one way or another; must always be called."""
        self._timer.cancel()
        super().end()
