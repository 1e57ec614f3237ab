"""Random ranked lists for property tests: tame ones that the literal definition can be held against, and wild ones."""

from typing import Any

from hypothesis import strategies as st

from app.fusion.calibration import EngineCalibration, LearnedMap
from app.fusion.ranked_lists import FusionConfig, RankedList

ENGINES = ("alpha", "beta", "delta", "gamma")

_IDS = st.one_of(st.integers(0, 9), st.integers(0, 9).map(str), st.sampled_from([1.0, 2.5, "x", "Ω"]))
_TAME = st.one_of(st.integers(0, 100).map(lambda n: n / 100), st.sampled_from([0, 1, 0.5]))
_LIES = st.sampled_from([True, False, None, float("nan"), float("inf"), -0.1, 1.0001, "0.9", [], {}])
_SCORES = st.one_of(st.integers(-5, 50), st.floats(-1e3, 1e3, allow_nan=False))
_WEIGHTS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 1.0, 2.0, 3.0])


@st.composite
def hits(draw: st.DrawFn, confidences: st.SearchStrategy[Any], scores: st.SearchStrategy[Any] = _SCORES) -> Any:
    """One hit; the text is often of the same length, so that the other rules of richness are met."""
    hit: dict[str, Any] = {"id": draw(_IDS), "score": draw(scores)}
    if draw(st.booleans()):
        hit["text"] = "t" * draw(st.integers(0, 2))
    if draw(st.integers(0, 4)) == 0:
        hit["content"] = draw(st.sampled_from([["a"], ["a", "b"], None]))
    if draw(st.booleans()):
        hit["meta"] = draw(st.sampled_from([{"m": 1}, {"m": 2, "n": 3}, {"engine": "inner"}, "no object", None]))
    if draw(st.integers(0, 4)):
        hit["confidence"] = draw(confidences)
    return hit


@st.composite
def federations(
    draw: st.DrawFn,
    confidences: st.SearchStrategy[Any] | None = None,
    scores: st.SearchStrategy[Any] = _SCORES,
    weights: st.SearchStrategy[float] = _WEIGHTS,
    readings: tuple[Any, ...] = ("ranked", "ranked", "independent", "ignore"),
    namespaces: tuple[str | None, ...] = (None, None, None, "ns"),
    calibrations: st.SearchStrategy[EngineCalibration | None] = st.none(),  # noqa: B008 - strategies are values
) -> list[RankedList]:
    """Up to four engines, some of them empty, with holes, lies and duplicates."""
    said = st.one_of(_TAME, _TAME, _LIES) if confidences is None else confidences
    engines = draw(st.lists(st.sampled_from(ENGINES), min_size=0, max_size=4, unique=True))
    return [
        RankedList(
            engine,
            draw(st.lists(hits(said, scores), max_size=8)),
            weight=draw(weights),
            priority=draw(st.integers(0, 1)),
            fetch_k=draw(st.sampled_from([0, 5, 20])),
            score_floor=draw(st.sampled_from([None, 0.0, -1.0])),
            confidence=draw(st.sampled_from(readings)),
            namespace=draw(st.sampled_from(namespaces)),
            silent=draw(st.sampled_from([None, None, "scores", "ranks"])),
            calibration=draw(calibrations),
        )
        for engine in engines
    ]


@st.composite
def maps(draw: st.DrawFn) -> EngineCalibration | None:
    """What was learned of an engine: nothing, one kind of map, or both."""
    theta = st.floats(-8, 8)
    confident = LearnedMap("confident", (draw(theta), draw(theta)), draw(st.sampled_from([0.0, 1.0, 200.0])))
    silent = LearnedMap(
        "silent",
        (draw(theta), draw(theta), draw(theta), draw(theta)),
        draw(st.sampled_from([0.0, 1.0, 200.0])),
        draw(st.floats(-50, 50)),
        draw(st.sampled_from([0.0, 1.0, 10.0])),
    )
    return draw(
        st.sampled_from([None, EngineCalibration(confident), EngineCalibration(None, silent)])
        | st.just(EngineCalibration(confident, silent))
    )


def options(**fixed: Any) -> st.SearchStrategy[FusionConfig]:
    """Wishes by id; what is given is fixed."""
    drawn = {
        "method": st.sampled_from(["rrf", "rrf", "weighted", "convex"]),
        "rrf_k": st.sampled_from([1, 10, 60]),
        "confidence_weight": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
        "silent": st.sampled_from(["scores", "scores", "ranks"]),
    }
    return st.builds(FusionConfig, **{**drawn, **{name: st.just(value) for name, value in fixed.items()}})


def wild_federations() -> st.SearchStrategy[list[RankedList]]:
    """Whatever JSON, and more than JSON, may hold as scores."""
    extremes = st.sampled_from([1.7e308, -1.7e308, 5e-324, 0, -0.0, float("inf"), float("nan"), 2**63])
    return federations(scores=st.one_of(_SCORES, extremes), weights=st.sampled_from([0.0, 1e-13, 0.1, 1.0, 1e6]))
