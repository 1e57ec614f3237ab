"""Callers that disconnect before they are answered: their work is cancelled, without a task for each request."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

Result = TypeVar("Result")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

WATCH_AFTER = 0.05
"""Seconds until a request that is still under way is watched for its caller hanging up; most are answered before."""


class ClientDisconnected(Exception):
    """The caller went away before its request was answered."""


async def close_connection(scope: Scope, receive: Receive) -> None:
    """Part with a caller that is gone or was given up: the server is let know before it misses the rest."""
    abort = scope.get("abort")
    if abort is not None:
        abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def unless_hung_up(work: Awaitable[Result], watch: "DisconnectWatcher") -> Result:
    """Do `work`, but cancel it when the caller hangs up. Raises ClientDisconnected."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if watch.hung_up and task is not None and task.uncancel() == 0:
            raise ClientDisconnected from None
        raise
    finally:
        watch.end()


class DisconnectWatcher:
    """Cancels the task it was made in when the caller disconnects. Costs a timer; a task only for slow requests."""

    __slots__ = ("_receive", "_task", "_timer", "_watcher", "hung_up")

    def __init__(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        self.hung_up = False
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER, self._start)

    def end(self) -> None:
        """The work is over: nobody cancels this task any more."""
        self._task = None
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def hang_up(self) -> None:
        """The caller is gone, or given up."""
        if self._task is not None:
            self.hung_up = True
            self._task.cancel()
            self._task = None

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()

    def __repr__(self) -> str:
        state = "hung up" if self.hung_up else "over" if self._task is None else "waiting"
        return f"<HangUpWatch {state}{', listening' if self._watcher is not None else ''}>"
