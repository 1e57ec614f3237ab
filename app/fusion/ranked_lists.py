"""Input of fusion: the ranked list of one engine, and the parameters of fusing several of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from app.fusion.calibration import EngineCalibration
from app.fusion.identity import Identity

Method = Literal["rrf", "weighted", "convex"]
Reading = Literal["ranked", "independent", "ignore"]
Silent = Literal["scores", "ranks"]
"""How a list is read when no engine gives confidences: by the shape of its scores, or by its ranks alone."""

MAX_WEIGHT: Final = 1e6
"""Largest weight of a list: sums of them stay far from the end of what a double can hold."""


class RankedList(NamedTuple):
    """One engine's answer; a named tuple, since one is made per engine and request.

    `hits` are in the engine's order, each with an `id` (string or number, never a boolean) and a numeric `score`; every
    other field is untrusted.
    """

    engine: str
    hits: Sequence[dict[str, Any]]
    weight: float = 1.0
    """Factor of its points, from 0 (adds nothing) to MAX_WEIGHT."""
    priority: int = 0
    fetch_k: int = 0
    """How many hits the engine was asked for."""
    score_floor: float | None = None
    """Theoretical minimum of its scores, if the engine advertises one."""
    confidence: Reading = "ranked"
    namespace: str | None = None
    """Prefix of its ids: with `docs`, id 7 becomes `docs:7`."""
    size: int = 0
    """Bytes of the engine's answer."""
    max_trust: str | None = None
    """Highest `trust.level` that its hits may have; None: any."""
    silent: Silent | None = None
    """Overrides `FusionConfig.silent` for this engine."""
    calibration: EngineCalibration | None = None
    """Learned calibration of its confidences or scores; None: they are used as they are."""


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Parameters of fusion. `confidence_weight` in [0,1] applies to `rrf` only; 0 is plain RRF."""

    method: Method = "rrf"
    rrf_k: int = 60
    confidence_weight: float = 0.8
    identity: Identity = "id"
    silent: Silent = "scores"
