"""Progress of a tool call for MCP clients that ask for it: one notification per engine that answered.

The result lists engines that failed. A slow client delays the end of the call, never an engine. Separate from the
server, since it does not depend on how notifications are sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""(progress, total, message)."""


class McpProgressReporter:
    """The notifications of one tool call; a federation Listener. `end` must always be called."""

    __slots__ = ("_answered", "_report", "_waiting", "_writer")

    ready: ClassVar[bool] = False
    """Lists of hits are not for here."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._answered = 0
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Engines are about to be asked."""
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def tell(self, progress: Mapping[str, Any]) -> None:
        """RCP's own progress holds hits, which are not for here."""

    def log(self, line: Mapping[str, Any]) -> None:
        """One engine has ended."""
        if line["data"]["status"] == "ok":
            self._waiting.put_nowait(line["message"])

    async def finish(self) -> None:
        """Return when the client has been told everything."""
        if self._writer is not None:
            self._waiting.put_nowait(None)
            await self._writer

    def end(self) -> None:
        """Let go, whatever has not been told."""
        if self._writer is not None:
            self._writer.cancel()

    async def _write(self) -> None:
        while (message := await self._waiting.get()) is not None:
            self._answered += 1
            await self._report(self._answered, None, message)

    def __repr__(self) -> str:
        return f"<Telling of {self._answered} engines, {self._waiting.qsize()} to be told>"
