"""Maps of learned calibration as JSON: printed by `rcp-gateway calibrate`, read by `fuse`, loaded by operators.

A map holds what fusion applies (θ, n, the scale of scores) and the sums that learning goes on from.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from app.fusion.calibration import EngineCalibration, Evidence, Kind, LearnedMap, Moments, size_of
from app.protocol.param_fields import refuse_value

MOST_MAPS = 2
"""Of one engine: one of lists with confidences, one of lists without."""


class StatedMap(NamedTuple):
    """What was learned of one engine and kind of list."""

    kind: Kind
    sums: tuple[float, ...]
    moments: Moments


def written_map(evidence: Evidence, moments: Moments) -> dict[str, Any]:
    """One map as JSON: what fusion applies, and the sums that learning goes on from."""
    learned = evidence.learned(moments)
    return {
        "kind": learned.kind,
        "theta": list(learned.theta),
        "n": learned.n,
        "mean": learned.mean,
        "sd": learned.sd,
        "sums": list(evidence.sums),
        "moments": list(moments),
    }


def written_maps(maps: Mapping[Kind, tuple[Evidence, Moments]]) -> dict[str, Any]:
    """The maps of one engine: that with more evidence, and the other under `also` if there is one."""
    order = sorted(maps.values(), key=lambda one: (-one[0].n, one[0].kind))
    first, *rest = [written_map(evidence, moments) for evidence, moments in order]
    return {**first, **({"also": rest} if rest else {})}


def read_learned_maps(stated: Any) -> list[StatedMap]:
    """Maps to go on learning from. Raises InvalidParams."""
    if type(stated) is not list or not 0 < len(stated) <= MOST_MAPS:
        refuse_value("maps", "an array of one or two maps, as `calibrate` prints them", stated)
    return [_read(one, f"maps[{place}]") for place, one in enumerate(stated)]


def read_calibration(stated: Any, field: str) -> EngineCalibration:
    """The maps of one engine as fusion applies them. Raises InvalidParams."""
    maps: dict[Kind, LearnedMap] = {}
    also = stated.get("also", []) if type(stated) is dict else []
    for one in [stated, *(also if type(also) is list else [])]:
        kind = _kind(one, field)
        width = 2 if kind == "confident" else 4
        theta = _numbers(one, "theta", width, field)
        n, mean, sd = [_number(one, name, field) for name in ("n", "mean", "sd")]
        if n < 0 or sd < 0:
            refuse_value(f"{field}.{'n' if n < 0 else 'sd'}", "a number not below 0", min(n, sd))
        maps[kind] = LearnedMap(kind, tuple([min(8.0, max(-8.0, value)) for value in theta]), n, mean, sd)
    return EngineCalibration(maps.get("confident"), maps.get("silent"))


def _read(stated: Any, field: str) -> StatedMap:
    kind = _kind(stated, field)
    sums = _numbers(stated, "sums", size_of(kind), field)
    moments = Moments(*(_numbers(stated, "moments", 3, field) if kind == "silent" else ()))
    if sums[-1] < 0 or moments.seen < 0:
        refuse_value(f"{field}.sums", "sums of evidence, which are not below 0", sums[-1])
    return StatedMap(kind, sums, moments)


def _kind(stated: Any, field: str) -> Kind:
    if type(stated) is not dict:
        refuse_value(field, "an object with 'kind' and 'theta'", stated)
    kind = stated.get("kind")
    if kind not in ("confident", "silent"):
        refuse_value(f"{field}.kind", "'confident' or 'silent'", kind)
    found: Kind = kind
    return found


def _numbers(stated: Mapping[str, Any], name: str, count: int, field: str) -> tuple[float, ...]:
    values = stated.get(name)
    if type(values) is not list or len(values) != count or not all(map(_finite, values)):
        refuse_value(f"{field}.{name}", f"an array of {count} finite numbers", values)
    return tuple([float(value) for value in values])


def _number(stated: Mapping[str, Any], name: str, field: str) -> float:
    value = stated.get(name, 0.0)
    if not _finite(value):
        refuse_value(f"{field}.{name}", "a finite number", value)
    return float(value)


def _finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:
        return False
