"""Cancels the work for callers that disconnect before they are answered, without a task for each request."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

Result = TypeVar("Result")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

WATCH_AFTER = 0.05
"""Seconds after which a request is watched for a disconnect. Most are answered earlier and need no task."""


class ClientDisconnected(Exception):
    """The caller disconnected before its request was answered."""


async def close_connection(scope: Scope, receive: Receive) -> None:
    """Abort the connection of a caller that disconnected, or that does not read its response."""
    # Without this, the server logs an error about an incomplete response.
    abort = scope.get("abort")
    if abort is not None:
        abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def unless_hung_up(work: Awaitable[Result], watch: "DisconnectWatcher") -> Result:
    """Await `work`, but cancel it when the caller disconnects. Raises ClientDisconnected."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        # `uncancel` is not 0 if the task was cancelled for another reason as well, such as shutdown.
        if watch.hung_up and task is not None and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watch.end()


class DisconnectWatcher:
    """Cancels the task that created it when the caller disconnects. It costs a timer, and for slow requests a task."""

    __slots__ = ("_receive", "_task", "_timer", "_watcher", "hung_up")

    def __init__(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        self.hung_up = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER, self._start)

    def end(self) -> None:
        """The work has ended: stop watching."""
        self._task = None
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def hang_up(self) -> None:
        """Cancel the work: the caller has disconnected, or does not read."""
        if self._task is not None:
            self.hung_up = True
            self._task.cancel()
            self._task = None

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        # The body has been read completely, so the next event is the disconnect.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()

    def __repr__(self) -> str:
        state = "hung up" if self.hung_up else "over" if self._task is None else "waiting"
        return f"<DisconnectWatcher {state}{', listening' if self._watcher is not None else ''}>"
