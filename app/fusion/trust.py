"""How far a merged document may be trusted (RCP §15): never further than any engine that returned it says.

Decides between differing statements; the most cautious one wins. It refuses to judge texts.
"""

from collections.abc import Sequence
from typing import Any

_CAUTION = {"untrusted": 0, "community": 1, "trusted": 2}


def merged_trust(own: Any, others: Sequence[Any]) -> Any:
    """The `trust` of a fused hit: the kept copy's own, its level lowered to the lowest that another copy states.

    A suspicion of injection by any copy stays. Where the kept copy states no level nothing may raise it: another's
    statement is taken over only as `untrusted`. Returns `own` itself if nothing changes it.
    """
    stated = [trust for trust in others if type(trust) is dict]
    levels = [trust.get("level") for trust in stated]
    lowest = min((level for level in levels if type(level) is str and level in _CAUTION), key=_caution, default=None)
    suspected = any(trust.get("injectionSuspected") is True for trust in stated)
    kept = own if type(own) is dict else {}
    level = kept.get("level")
    known = type(level) is str and level in _CAUTION
    changes: dict[str, Any] = {}
    if known:
        if lowest is not None and _caution(lowest) < _caution(level):
            changes["level"] = lowest
    elif lowest == "untrusted" or suspected:
        changes["level"] = "untrusted"
    if suspected and kept.get("injectionSuspected") is not True:
        changes["injectionSuspected"] = True
    return {**kept, **changes} if changes else own


def _caution(level: Any) -> int:
    return _CAUTION[level]
