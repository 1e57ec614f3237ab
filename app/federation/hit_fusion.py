"""Hits of several engines as one list, for methods that answer hits beside other things: `graph` and `memory/recall`.

Pure. Decides by which wishes they are fused, as for `retrieve` (RCP §16.3). It refuses to know what else was answered.
"""

from collections.abc import Iterator, Mapping, Sequence

from app.federation.hit_validation import sanitized
from app.federation.outcome import Hit, Outcome
from app.federation.planner import EngineCall
from app.federation.result_set import lists_of
from app.fusion.injection_screen import InjectionScreen
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig
from app.fusion.rrf import fuse
from app.protocol.retrieve_params import GatewayOptions
from app.settings.schema import GatewaySettings


class HitFusion:
    """How hits become one list: the settings', and what `x-gateway` says otherwise; at most `k`."""

    __slots__ = ("_k", "_options", "_screen")

    def __init__(
        self, gateway: GatewayOptions, settings: GatewaySettings, k: int, screen: InjectionScreen | None = None
    ) -> None:
        """`screen` looks at what is answered."""
        wishes = settings.fusion
        weight = gateway.confidence_weight
        self._k = k
        self._screen = screen
        self._options = FusionConfig(
            # Floors are stated of the scores of `retrieve`; nobody states any here.
            method="rrf" if wishes.method == "convex" else wishes.method,
            rrf_k=wishes.rrf_k,
            confidence_weight=wishes.confidence_weight if weight is None else weight,
            identity=gateway.identity or settings.retrieve.identity,
            silent=wishes.silent,
        )

    def steps(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> Iterator[None]:
        """Let a screen look at texts ahead of `fusion`; yields where others should have their turn of the loop."""
        if self._screen is not None:
            yield from self._screen.steps(fuse(lists_of(engine_calls, outcomes), self._options), 0, self._k)

    def fusion(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> FusedList:
        """All hits of those who answered, without those that a screen leaves out; `outcomes` by engine id."""
        fusion = fuse(lists_of(engine_calls, outcomes), self._options)
        return fusion if self._screen is None else self._screen.kept(fusion)

    def hits(self, fusion: FusedList) -> list[Hit]:
        """What is answered of them."""
        hits = fusion.hits(0, self._k)
        if self._screen is not None:
            self._screen.inspect(hits)
        return hits

    def keys(self, fusion: FusedList) -> Sequence[str]:
        """The identity keys of what is answered."""
        return fusion.keys(0, self._k)

    def so_far(self, engine_calls: Mapping[str, EngineCall], outcomes: Sequence[Outcome]) -> list[Hit] | None:
        """What the answer would hold if nobody else answered; None if nobody has yet."""
        if not any(one.status == "ok" for one in outcomes):
            return None
        fusion = fuse(lists_of(engine_calls, outcomes), self._options)
        if self._screen is not None and any(True for _ in self._screen.steps(fusion, 0, self._k)):
            return None  # more to look at than fits into one turn of the loop: this progress comes without its hits
        hits = self.hits(fusion if self._screen is None else self._screen.kept(fusion))
        sanitized(hits)
        return hits

    def __repr__(self) -> str:
        return f"<Blend of at most {self._k} by {self._options.method}>"
