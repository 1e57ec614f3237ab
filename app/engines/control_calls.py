"""Whether errors that may follow from the params follow from the engine instead.

An engine that answers -32603 is alive. One caller's poisonous query, or a thousand different ones, must not take the
engine from all other callers. So such errors are withheld. When enough of them came in a row, a plain call of our own
(the control call) is made, and they count only if it fails as well.
"""

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

from app.protocol.envelope import canonical

MAX_KNOWN: Final = 256
KNOWN_SECONDS: Final = 60.0
"""How many params that failed are remembered, and for how long: they are not sent a second time per question."""

CONTROL_PAUSE: Final = 1.0
"""Seconds between two control calls of an engine that answers them."""

CONTROL_CALLS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "retrieve": {"query": "test", "k": 1},
        "embed": {"inputs": ["test"], "texts": ["test"]},
        "embed/sparse": {"inputs": ["test"], "texts": ["test"]},
        "embed/multi": {"inputs": ["test"], "texts": ["test"]},
        "rerank": {"query": "test", "passages": ["test"], "documents": ["test"]},
        "memory/recall": {"query": "test"},
    }
)
"""Method -> params that every engine with the method must be able to answer. Methods without them never count."""


class Suspicion:
    """The errors of one engine that may follow from the params. Times are event-loop seconds."""

    __slots__ = ("_known", "_next_control", "enough", "pending", "withheld")

    def __init__(self, enough: int) -> None:
        """`enough`: errors in a row after which a control call is due."""
        self.withheld = 0
        """Errors since the last success that have not been counted yet."""
        self.pending = False
        """Whether a control call is under way."""
        self.enough = enough
        self._known: dict[bytes, float] = {}
        self._next_control = 0.0

    def failed(self, params: Mapping[str, Any], now: float, *, probing: bool) -> bool:
        """Note an error; says whether a control call is due. `probing`: the breaker waits for a verdict."""
        digest = _digest(params)
        self._known.pop(digest, None)
        self._known[digest] = now + KNOWN_SECONDS
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self.withheld += 1
        if self.pending:
            return False
        return probing or (self.withheld >= self.enough and now >= self._next_control)

    def knows(self, params: Mapping[str, Any], now: float) -> bool:
        """Whether these very params failed a short while ago."""
        if not self._known:
            return False
        return now < self._known.get(_digest(params), 0.0)

    def cleared(self) -> None:
        """The engine answered something: what failed before followed from its params."""
        self.withheld = 0

    def acquitted(self, now: float) -> None:
        """The control call was answered."""
        self.cleared()
        self._next_control = now + CONTROL_PAUSE

    def take_withheld(self) -> int:
        """The control call failed as well: how many errors count now, itself included."""
        count, self.withheld = self.withheld + 1, 0
        return count

    def __repr__(self) -> str:
        return f"<Suspicion {self.withheld} errors withheld, {len(self._known)} known params>"


def _digest(params: Mapping[str, Any]) -> bytes:
    """Of all that a caller wrote: what differs from call to call is in `_meta`."""
    told = {name: value for name, value in params.items() if name != "_meta"}
    return blake2b(canonical(told), digest_size=16).digest()
