"""Output of `tune`: tables, a conclusion, and lines to paste into the configuration."""

import json
from typing import TYPE_CHECKING, Any

from app.cli.score_tables import change_table, number, p_text
from app.evaluation import measures
from app.evaluation.fusion_search import FusionParameters
from app.evaluation.tuning import Tuning

if TYPE_CHECKING:
    from rich.console import Console


def conclusion(tuning: Tuning) -> str:
    """What may be said, and no more."""
    gain, p = tuning.decisive.mean or 0.0, p_text(tuning.decisive.p)
    match tuning.verdict:
        case "better":
            return f"the gain of {gain:+.4f} in {measures.NDCG} on the held-out queries is significant (p {p})"
        case "unproven":
            return (
                f"keep your settings: the gain of {gain:+.4f} in {measures.NDCG} on the held-out queries may well be "
                f"chance (p {p}); more judged queries would tell"
            )
        case "no_better":
            return f"keep your settings: on the held-out queries those found are no better ({gain:+.4f}, p {p})"
        case "unchanged":
            return "keep your settings: the search found nothing better"


def report_of(tuning: Tuning) -> dict[str, Any]:
    """The outcome as JSON."""
    before, after = tuning.on_tuning
    return {
        "present": _settings(tuning.present),
        "found": _settings(tuning.found),
        "searched": {measures.NDCG: {"present": before, "found": after}},
        "heldOut": {
            change.metric: {
                "present": change.present,
                "found": change.found,
                "difference": change.difference.mean,
                "p": change.difference.p,
            }
            for change in tuning.changes
        },
        "test": measures.TEST,
        "verdict": tuning.verdict,
        "conclusion": conclusion(tuning),
        "registry": [{"id": engine, "weight": weight} for engine, weight in tuning.found.weights.items()],
        "gateway": {"fusion": _fusion(tuning.found)},
    }


def show_tuning(tuning: Tuning, console: "Console") -> None:
    """The outcome for people."""
    before, after = tuning.on_tuning
    console.print(
        f"searched on {tuning.searched} queries ({measures.NDCG} {number(before)} -> {number(after)}), "
        f"checked on {tuning.held_out} others:\n"
    )
    rows = [(change.metric, change.present, change.found, change.difference) for change in tuning.changes]
    console.print(change_table(rows))
    console.print(f"p: {measures.TEST}\n", style="dim")
    console.print(conclusion(tuning), style="green" if tuning.verdict == "better" else "yellow")
    if tuning.verdict != "unchanged":
        _show_lines(tuning, console)


def _show_lines(tuning: Tuning, console: "Console") -> None:
    """What to paste: each engine's line into its entry, the rest into the settings."""
    advice = "to use what was found" if tuning.verdict == "better" else "to try what was found all the same"
    console.print(f"\n{advice}, write in the registry, each line in the entry of its engine:\n")
    for engine, weight in tuning.found.weights.items():
        console.print(f'      "id": {json.dumps(engine)}, "weight": {json.dumps(weight)},', soft_wrap=True)
    console.print("\nand in gateway.yaml:\n\nfusion:")
    for key, value in _fusion(tuning.found).items():
        console.print(f"  {key}: {json.dumps(value)}")


def _settings(blend: FusionParameters) -> dict[str, Any]:
    return {"weights": dict(blend.weights), "rrfK": blend.rrf_k, "confidenceWeight": blend.confidence_weight}


def _fusion(blend: FusionParameters) -> dict[str, Any]:
    return {"rrf_k": blend.rrf_k, "confidence_weight": blend.confidence_weight}
