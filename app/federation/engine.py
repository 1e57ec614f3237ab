"""What the federation asks of an engine: an identity, the wishes of its registry entry, what it advertises, and a call.

The journey is written against this protocol alone; sockets and processes stay in the `engines` room.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from app.protocol.capabilities import Advertisement
from app.settings.schema import EngineEntry


class EngineReply(Protocol):
    """The answer of one call: the JSON-RPC `result` and the number of requests it took."""

    @property
    def result(self) -> dict[str, Any]: ...

    @property
    def attempts(self) -> int: ...


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

    async def call(
        self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True
    ) -> EngineReply:
        """Ask, and answer before `deadline` (event-loop seconds). Raises LegError."""
        ...
