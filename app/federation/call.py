"""The first of the four values that travel: who asks what, until when.

Made at the door, frozen from there on. It refuses to know which engines there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.protocol.params import CallMeta, RetrieveParams


@dataclass(frozen=True, slots=True)
class RetrieveCall:
    """One `retrieve` as it was accepted at the door. Times are event-loop seconds."""

    params: RetrieveParams
    meta: CallMeta
    started: float
    deadline: float
    request_id: str
    default_depth: int = 3
    """Levels of aggregators below us when the caller does not say, and the most it may say."""
    passed_on: Mapping[str, Any] = field(default_factory=dict)
    """What of the caller's `_meta` every engine is handed as it is."""
