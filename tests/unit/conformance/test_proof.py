"""Which level findings prove."""

from typing import Any

import pytest

from app.conformance.proof import L1_CORE, L2_SELECTION, MODES, judged, profile, proved
from app.conformance.verdict import Check, Finding, Level, Report, Verdict


async def never(_: Any) -> None:
    """A check that is not run."""


def finding(check_id: str, level: Level = "L0", verdict: Verdict = Verdict.PASS) -> Finding:
    """One finding of this check."""
    return Finding(Check(check_id, level, "1", "It is so.", never), verdict, "" if verdict is Verdict.PASS else "why")


FULL = {"retrieve": {"modes": list(MODES)}, "filter": {}, "citations": {}}
L0 = [finding("handshake.initialize")]
L1 = [*L0, *(finding(check_id, "L1") for check_id in L1_CORE)]
L2 = [*L1, finding(L2_SELECTION[0], "L2")]


@pytest.mark.parametrize(
    ("findings", "capabilities", "level"),
    [
        ([], FULL, None),
        (L0, {}, "L0"),
        (L1, FULL, "L1"),
        (L2, FULL, "L2"),
        ([*L1, finding(L2_SELECTION[-1], "L2")], FULL, "L2"),
        (L1[:-1], FULL, "L0"),
        ([*L1[:-1], finding(L1_CORE[-1], "L1", Verdict.SKIP)], FULL, "L0"),
        ([*L1[:-1], finding(L1_CORE[-1], "L1", Verdict.WARN)], FULL, "L1"),
        (L1, {"retrieve": {"modes": ["dense"]}}, "L1"),
        ([*L2, finding("x.y", "L0", Verdict.WARN)], FULL, "L2"),
        ([*L2, finding("x.y", "L0", Verdict.FAIL)], FULL, None),
        ([*L2, finding("x.y", "L1", Verdict.FAIL)], FULL, "L0"),
        ([*L2, finding("x.y", "L2", Verdict.FAIL)], FULL, "L1"),
        ([*L2, finding("x.y", "L2", Verdict.SKIP)], FULL, "L2"),
    ],
)
def test_a_level_is_proved_by_musts(findings: list[Finding], capabilities: Any, level: str | None) -> None:
    """Its core was seen to work, and no MUST of it or below is broken; what is recommended proves nothing."""
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


@pytest.mark.parametrize(
    ("claimed", "capabilities", "reason"),
    [
        ("L1", FULL, ""),
        ("L1", {"retrieve": {"modes": list(MODES), "citations": True}, "filter": {}}, ""),
        (
            "L2",
            {"retrieve": {"modes": ["dense"]}, "citations": {}},
            "retrieve.modes lacks sparse, hybrid; filter is not",
        ),
        ("L1", {}, "retrieve.modes lacks dense, sparse, hybrid; filter is not advertised; citations is not advertised"),
    ],
)
def test_what_a_level_recommends_warns(claimed: str, capabilities: Any, reason: str) -> None:
    """A server of L1 should have three modes, filters and citations; without, it is told so."""
    found = profile(claimed, capabilities)
    assert found is not None
    assert found.reason.startswith(reason)
    assert found.verdict == ("warn" if reason else "pass")


def test_l0_recommends_nothing() -> None:
    """A server that claims L0, or no level, is not told what others have."""
    assert profile("L0", {}) is None
    assert profile(None, {}) is None


@pytest.mark.parametrize(
    ("claimed", "level", "verdict", "strict", "admitted"),
    [
        ("L1", "L1", Verdict.FAIL, False, False),
        ("L0", "L1", Verdict.FAIL, False, True),
        (None, "L2", Verdict.FAIL, False, False),
        ("L2", "L0", Verdict.WARN, False, True),
        ("L2", "L0", Verdict.WARN, True, False),
        ("L0", "L1", Verdict.FAIL, True, False),
        ("L2", "L2", Verdict.SKIP, True, True),
    ],
)
def test_musts_of_the_claimed_level_admit(
    claimed: str | None, level: Level, verdict: Verdict, strict: bool, admitted: bool
) -> None:
    """A broken MUST above the claimed level, or a broken SHOULD, keeps nobody out unless it is strict."""
    report = Report(claimed=claimed, findings=(*L0, finding("x.y", level, verdict)), strict=strict)
    assert report.admitted is admitted
