"""How a tuning is told."""

from rich.console import Console

from app.cli.tuning_report import report_of, show_tuning
from app.evaluation.fusion_search import FusionParameters
from app.evaluation.measures import Difference
from app.evaluation.tuning import SettingChange, Tuning

PRESENT = FusionParameters({"code": 1.0, "docs": 1.0}, 60, 0.8)
FOUND = FusionParameters({"code": 0.5, "docs": 2.0}, 40, 0.6)


def outcome(gain: float, p: float, found: FusionParameters = FOUND) -> Tuning:
    """A tuning that gained so much."""
    change = SettingChange("nDCG@10", 0.5, 0.5 + gain, Difference(gain, p, 30))
    return Tuning(PRESENT, found, 20, 30, 30, (0.4, 0.6), (change,))


def shown(tuning: Tuning) -> str:
    """What a person reads."""
    console = Console(width=120, markup=False, emoji=False)
    with console.capture() as captured:
        show_tuning(tuning, console)
    return captured.get()


def test_lines_can_be_pasted() -> None:
    """One for each engine of the registry, and the section of the settings."""
    told = shown(outcome(0.1, 0.01))
    assert "searched on 20 queries (nDCG@10 0.4000 -> 0.6000), checked on 30 others" in told
    assert "to use what was found" in told
    assert '      "id": "code", "weight": 0.5,\n      "id": "docs", "weight": 2.0,\n' in told
    assert "fusion:\n  rrf_k: 40\n  confidence_weight: 0.6\n" in told


def test_what_is_not_proven_is_no_advice() -> None:
    """The lines are there for whoever wants to try; nothing found has none."""
    assert "to try what was found all the same" in shown(outcome(0.1, 0.2))
    assert "keep your settings" in shown(outcome(-0.1, 0.01))
    assert '"weight"' not in shown(outcome(0.0, 1.0, PRESENT))


def test_programs_get_the_same() -> None:
    """Settings, measurements, verdict, and what to paste as data."""
    assert report_of(outcome(0.25, 0.01)) == {
        "present": {"weights": {"code": 1.0, "docs": 1.0}, "rrfK": 60, "confidenceWeight": 0.8},
        "found": {"weights": {"code": 0.5, "docs": 2.0}, "rrfK": 40, "confidenceWeight": 0.6},
        "searched": {"nDCG@10": {"present": 0.4, "found": 0.6}},
        "heldOut": {"nDCG@10": {"present": 0.5, "found": 0.75, "difference": 0.25, "p": 0.01}},
        "test": "paired randomisation test, two-sided",
        "verdict": "better",
        "conclusion": "the gain of +0.2500 in nDCG@10 on the held-out queries is significant (p 0.010)",
        "registry": [{"id": "code", "weight": 0.5}, {"id": "docs", "weight": 2.0}],
        "gateway": {"fusion": {"rrf_k": 40, "confidence_weight": 0.6}},
    }
