"""A gateway of which some engines are asked directly: it is asked for the others only, or they would count twice.

Engines room. It decides nothing but that; everything else is as the gateway itself has it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.engines.engine import RemoteEngine
from app.engines.in_flight_call import InFlightCall
from app.protocol.advertisement import Advertisement
from app.settings.schema import EngineEntry

RESTRICTED = "x-gateway"
"""Params in which a gateway of our kind is told which of its engines to ask."""


class ResidualEngine:
    """`gateway` without the engines that joined. Satisfies `federation.engine.Engine`."""

    __slots__ = ("_gateway", "_only", "entry", "id")

    def __init__(self, gateway: RemoteEngine, only: Sequence[str]) -> None:
        """`only`: the engines it is asked for, by the ids it gives them."""
        self.id = gateway.id
        self.entry: EngineEntry = gateway.entry
        self._gateway = gateway
        self._only = list(only)

    @property
    def advertisement(self) -> Advertisement | None:
        """The whole gateway's."""
        return self._gateway.advertisement

    @property
    def down_reason(self) -> str | None:
        """The whole gateway's."""
        return self._gateway.down_reason

    def call(self, method: str, params: Mapping[str, Any], deadline: float, *, idempotent: bool = True) -> InFlightCall:
        """As RemoteEngine.call, restricted to the remaining engines."""
        return self._gateway.call(method, self._narrowed(params), deadline, idempotent=idempotent)

    def _narrowed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        wishes = params.get(RESTRICTED)
        return {**params, RESTRICTED: {**(wishes if type(wishes) is dict else {}), "engines": self._only}}

    def __repr__(self) -> str:
        return f"<Remainder {', '.join(self._only)} of {self._gateway!r}>"
