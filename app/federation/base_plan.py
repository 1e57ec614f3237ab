"""What the plans of plain requests have in common: whoever asks, the same engines are asked for as much. Pure.

Kept with the members that it was made of, so it is gone with them. It decides which plans have one; what differs from
request to request (the question, the time that is left, what is handed on) is the plan's.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from app.federation.engine_interface import Engine
from app.federation.outcome import Outcome
from app.fusion.ranked_lists import FusionConfig
from app.settings.schema import FusionSettings, RetrieveSettings

if TYPE_CHECKING:
    from app.federation.planner import Plan

MAX_OUTLINES: Final = 64
"""Kept of one federation, one for each `k`."""


@final
class PlanDraft:
    """What is the same of one engine's leg in every plan; `lot`: the place of its `(timeout_ms, k)` in the outline."""

    __slots__ = ("asked", "engine", "lot", "score_floor", "weight")

    def __init__(self, engine: Engine, weight: float, asked: int, score_floor: float | None, lot: int) -> None:
        self.engine = engine
        self.weight = weight
        self.asked = asked
        self.score_floor = score_floor
        self.lot = lot

    def __repr__(self) -> str:
        return f"<Draft of {self.engine.id}: {self.asked} hits, weight {self.weight:g}>"


@final
class BasePlan:
    """One plan without its question and its times. Holds only under the very wishes that it was made under."""

    __slots__ = ("_blend", "_weights", "_wishes", "drafts", "fusion", "k", "lots", "notes", "skipped", "window")

    def __init__(
        self, plan: "Plan", wishes: RetrieveSettings, blend: FusionSettings, weights: Mapping[str, float] | None
    ) -> None:
        """`weights`: those of the tenant, if it has some."""
        self._wishes = wishes
        self._blend = blend
        self._weights = weights
        self.k = plan.k
        self.window = plan.window
        self.fusion: FusionConfig = plan.fusion
        self.skipped: tuple[Outcome, ...] = plan.skipped
        self.notes: tuple[str, ...] = plan.notes
        self.lots: list[tuple[int, int]] = []
        self.drafts: list[PlanDraft] = []
        for engine_call in plan.engine_calls:
            lot = (engine_call.engine.entry.timeout_ms, engine_call.asked)
            if lot not in self.lots:
                self.lots.append(lot)
            self.drafts.append(
                PlanDraft(
                    engine_call.engine,
                    engine_call.weight,
                    engine_call.asked,
                    engine_call.score_floor,
                    self.lots.index(lot),
                )
            )

    def holds(self, wishes: RetrieveSettings, blend: FusionSettings, weights: Mapping[str, float] | None) -> bool:
        """Whether it was made under these wishes."""
        return self._wishes is wishes and self._blend is blend and self._weights is weights

    def __repr__(self) -> str:
        return f"<Outline of k {self.k}, {len(self.drafts)} engines in {len(self.lots)} lots>"


Outlines = dict[int, BasePlan]
"""By the `k` that is answered."""


def is_permanent(engine_calls: Sequence[object], skipped: Sequence[Outcome], lost: Sequence[Outcome]) -> bool:
    """Whether what was decided holds until an advertisement changes: who has not been reached has none yet."""
    return bool(engine_calls) and not lost and not [outcome for outcome in skipped if outcome.kind == "unreached"]


def keep(outlines: Outlines, base_plan: BasePlan) -> None:
    """Keep it in place of the one before, or of all if there are too many."""
    if len(outlines) >= MAX_OUTLINES:
        outlines.clear()
    outlines[base_plan.k] = base_plan
