"""Trust of a fused document (RCP §15): at most what every engine that returned it states and is allowed to state.

Where statements differ, the most cautious one wins.
"""

from collections.abc import Sequence
from typing import Any, Final

_CAUTION: Final = {"untrusted": 0, "community": 1, "trusted": 2}


def merged_trust(own: Any, others: Sequence[Any]) -> Any:
    """The `trust` of a fused hit: the kept copy's own, its level lowered to the lowest that another copy states.

    A suspicion of injection by any copy stays. Where the kept copy states no level, another's level is adopted only if
    it is `untrusted`: nothing raises trust. Returns `own` itself if nothing changes.
    """
    stated = [trust for trust in others if type(trust) is dict]
    levels = [trust.get("level") for trust in stated]
    lowest = min((level for level in levels if type(level) is str and level in _CAUTION), key=_caution, default=None)
    suspicious = any(trust.get("injectionSuspected") is True for trust in stated)
    kept = own if type(own) is dict else {}
    level = kept.get("level")
    known = type(level) is str and level in _CAUTION
    changes: dict[str, Any] = {}
    if known:
        if lowest is not None and _caution(lowest) < _caution(level):
            changes["level"] = lowest
    elif lowest == "untrusted" or suspicious:
        changes["level"] = "untrusted"
    if suspicious and kept.get("injectionSuspected") is not True:
        changes["injectionSuspected"] = True
    return {**kept, **changes} if changes else own


def capped(trust: Any, highest: str) -> Any:
    """`trust` with its level lowered to `highest`, the registry's limit for this engine.

    Nothing is raised: a missing level becomes `untrusted` or stays missing. Returns `trust` itself if nothing changes.
    """
    stated = trust if type(trust) is dict else {}
    level = stated.get("level")
    known = type(level) is str and level in _CAUTION
    if known and _caution(level) <= _caution(highest):
        return trust
    return {**stated, "level": highest} if known or highest == "untrusted" else trust


def capped_hit(hit: Any, highest: str) -> Any:
    """The hit with its trust lowered to `highest`; `hit` itself if nothing changes or it is no object."""
    if type(hit) is not dict:
        return hit
    own = hit.get("trust")
    trust = capped(own, highest)
    return hit if trust is own else {**hit, "trust": trust}


def suspected(trust: Any) -> dict[str, Any]:
    """The trust of a hit that looks like prompt injection: flagged, nothing raised."""
    marked: dict[str, Any] = merged_trust(trust, [{"injectionSuspected": True}])
    return marked


def distrusted(trust: Any) -> dict[str, Any]:
    """The trust of a hit that was reported as poisoned: `untrusted`, and suspected."""
    return suspected({**(trust if type(trust) is dict else {}), "level": "untrusted"})


def _caution(level: Any) -> int:
    return _CAUTION[level]
