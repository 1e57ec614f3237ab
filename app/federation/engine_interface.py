"""What the federation needs to know of an engine: an id, its registry entry, its advertisement, and how to call it.

Separate from `app.engines`, because a caller's session and a gateway with discovered engines have engines of their own.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from app.engines.in_flight_call import InFlightCall
from app.protocol.advertisement import Advertisement
from app.settings.schema import EngineEntry


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

    @property
    def breaker_open(self) -> bool:
        """Whether its circuit breaker holds calls back."""
        ...

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """Start a call that ends before `deadline` (event-loop seconds). Raises LegError if it cannot be started."""
        ...
