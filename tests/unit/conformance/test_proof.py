"""Which level findings prove."""

from typing import Any

import pytest

from app.conformance.proof import BEYOND, DELIVERY, L1_PASSES, MODES, judged, proved
from app.conformance.verdict import Check, Finding, Level, Verdict


async def never(_: Any) -> None:
    """A check that is not run."""


def finding(check_id: str, level: Level = "L0", verdict: Verdict = Verdict.PASS) -> Finding:
    """One finding of this check."""
    return Finding(Check(check_id, level, "1", "It is so.", never), verdict, "" if verdict is Verdict.PASS else "why")


FULL = {"retrieve": {"modes": list(MODES)}, "filter": {}, "citations": {}}
L0 = [finding("handshake.initialize")]
L1 = [*L0, *(finding(check_id, "L1") for check_id in L1_PASSES)]
L2 = [*L1, finding(BEYOND[0], "L2"), finding(DELIVERY[1], "L2")]


@pytest.mark.parametrize(
    ("findings", "capabilities", "level"),
    [
        ([], FULL, None),
        (L0, {}, "L0"),
        (L1, FULL, "L1"),
        (L2, FULL, "L2"),
        (L2[:-1], FULL, "L1"),
        (L1[:-1], FULL, "L0"),
        (L1, {**FULL, "retrieve": {"modes": ["dense", "sparse"]}}, "L0"),
        (L1, {"retrieve": FULL["retrieve"], "filter": {}}, "L0"),
        ([*L2, finding("x.y", "L0", Verdict.FAIL)], FULL, None),
        ([*L2, finding("x.y", "L1", Verdict.FAIL)], FULL, "L0"),
        ([*L2, finding("x.y", "L2", Verdict.FAIL)], FULL, "L1"),
        ([*L2, finding("x.y", "L2", Verdict.SKIP)], FULL, "L2"),
    ],
)
def test_a_level_takes_what_rcp_wants_of_it(findings: list[Finding], capabilities: Any, level: str | None) -> None:
    """Everything advertised that the level wants, its own checks passed, and nothing failed at it or below."""
    assert proved(findings, capabilities) == level


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    [("L0", "pass"), ("L1", "pass"), ("L2", "fail"), (None, "skip"), ("L9", "skip"), (["L0"], "skip")],
)
def test_a_claim_is_held_to_the_proof(claimed: Any, verdict: str) -> None:
    """As much as is proved, or less, may be claimed."""
    found = judged(claimed, L1, FULL)
    assert found.verdict == verdict
    if verdict == "fail":
        assert found.reason.startswith("L2 is claimed and L1 proved: none of rerank.scores")
