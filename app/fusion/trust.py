"""How far a document may be trusted (RCP §15): never further than any engine that returned it says, or may say.

Decides between differing statements; the most cautious one wins. It refuses to judge texts.
"""

from collections.abc import Sequence
from typing import Any, Final

_CAUTION: Final = {"untrusted": 0, "community": 1, "trusted": 2}


def merged_trust(own: Any, others: Sequence[Any]) -> Any:
    """The `trust` of a fused hit: the kept copy's own, its level lowered to the lowest that another copy states.

    A suspicion of injection by any copy stays. Where the kept copy states no level nothing may raise it: another's
    statement is taken over only as `untrusted`. Returns `own` itself if nothing changes it.
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
    """What an engine says of a hit's trust, its level lowered to `highest`, the most that its registry entry allows.

    Nothing is raised: where no level is stated only `untrusted` is said. Returns `trust` itself if nothing changes it.
    """
    stated = trust if type(trust) is dict else {}
    level = stated.get("level")
    known = type(level) is str and level in _CAUTION
    if known and _caution(level) <= _caution(highest):
        return trust
    return {**stated, "level": highest} if known or highest == "untrusted" else trust


def capped_hit(hit: Any, highest: str) -> Any:
    """The hit with its trust lowered to `highest`; `hit` itself if nothing changes it, or if it is none."""
    if type(hit) is not dict:
        return hit
    own = hit.get("trust")
    trust = capped(own, highest)
    return hit if trust is own else {**hit, "trust": trust}


def suspected(trust: Any) -> dict[str, Any]:
    """The trust of a hit that looks like injection: said, and nothing raised."""
    marked: dict[str, Any] = merged_trust(trust, [{"injectionSuspected": True}])
    return marked


def distrusted(trust: Any) -> dict[str, Any]:
    """The trust of a hit that was reported as poisoned: `untrusted`, and suspected."""
    return suspected({**(trust if type(trust) is dict else {}), "level": "untrusted"})


def _caution(level: Any) -> int:
    return _CAUTION[level]
