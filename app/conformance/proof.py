"""Computes the level that the findings prove, and compares it with the level that the server claims (RCP §14). Pure.

A level is proved by its MUSTs: none of it or below is broken, and the core methods were seen to work. A missing
recommendation of a level (three modes, filters, citations) is a warning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.conformance.verdict import LEVELS, Check, Finding, Level, Verdict

MODES = ("dense", "sparse", "hybrid")

L1_CORE = ("retrieve.shape", "retrieve.scores", "retrieve.k")
"""Checks whose MUSTs L1 wants seen to hold: a skip proves nothing."""

L2_SELECTION = (
    "rerank.scores",
    "multi.matrices",
    "sparse.vectors",
    "graph.results",
    "transform.queries",
    "stream.progress",
    "pages.no-repeats",
    "retrieve.deterministic",
    "options.snapshots",
)
"""L2 wants one of these passed: RCP asks for a selection and does not say how large."""

Capabilities = Mapping[str, Any]


def proved(findings: Sequence[Finding], capabilities: Capabilities) -> Level | None:
    """The highest level that nothing speaks against; None below L0."""
    reached: Level | None = None
    for level in LEVELS:
        if any(obstacles(level, findings, capabilities)):
            return reached
        reached = level
    return reached


def obstacles(level: Level, findings: Sequence[Finding], capabilities: Capabilities) -> Iterator[str]:
    """What keeps `level`, on top of those below it, from being proved."""
    broken = {finding.check.id for finding in findings if finding.verdict is Verdict.FAIL}
    passed = {finding.check.id for finding in findings if finding.verdict is Verdict.PASS}
    # A warning of a check that is a MUST at heart says that its MUST holds.
    held = passed | {
        finding.check.id for finding in findings if finding.verdict is Verdict.WARN and finding.check.rule == "MUST"
    }
    yield from (f"{finding.check.id} failed" for finding in findings if _breaks(finding, level))
    if level == "L0" and "handshake.initialize" not in passed | broken:
        yield "handshake.initialize did not pass"
    if level == "L1":
        yield from (f"{id} did not pass" for id in L1_CORE if id not in held | broken)
    if level == "L2" and not held & {*L2_SELECTION}:
        yield f"none of {', '.join(L2_SELECTION)} passed"


def profile(claimed: Any, capabilities: Capabilities) -> Finding | None:
    """What L1 recommends and a server that claims it does not offer, as one more finding; None below L1."""
    if claimed not in LEVELS or claimed == "L0":
        return None
    lacking = list(_lacking(capabilities))
    return Finding(PROFILE, Verdict.WARN, "; ".join(lacking)) if lacking else Finding(PROFILE, Verdict.PASS)


def judged(claimed: Any, findings: Sequence[Finding], capabilities: Capabilities) -> Finding:
    """Whether the server claims no more than is proved, as one more finding."""
    level = proved(findings, capabilities)
    if claimed not in LEVELS:
        shown = level or "not even L0"
        return Finding(CLAIM, Verdict.SKIP, f"no level is claimed; proved is {shown}")
    above = LEVELS[: LEVELS.index(claimed) + 1]
    reasons = [reason for wanted in above for reason in obstacles(wanted, findings, capabilities)]
    if not reasons:
        return Finding(CLAIM, Verdict.PASS)
    told = "; ".join(reasons[:4]) + ("; …" if len(reasons) > 4 else "")
    return Finding(CLAIM, Verdict.FAIL, f"{claimed} is claimed and {level or 'not even L0'} proved: {told}")


def _breaks(finding: Finding, level: Level) -> bool:
    return finding.verdict is Verdict.FAIL and finding.check.level == level


def _lacking(capabilities: Capabilities) -> Iterable[str]:
    """What L1 recommends to advertise and is not. Some servers advertise `citations` inside `retrieve`."""
    found = capabilities.get("retrieve")
    offer = found if isinstance(found, dict) else {}
    modes = offer.get("modes")
    missing = [mode for mode in MODES if not isinstance(modes, list) or mode not in modes]
    if missing:
        yield f"retrieve.modes lacks {', '.join(missing)}"
    yield from (
        f"{name} is not advertised"
        for name in ("filter", "citations")
        if name not in capabilities and not offer.get(name)
    )


async def _never(_: Any) -> None:
    raise AssertionError("the claim is judged by the findings and not by asking")


CLAIM = Check("claim.level", "L0", "14", "The level that is claimed is proved.", _never)
PROFILE = Check(
    "claim.profile",
    "L1",
    "14.2",
    "A server of L1 offers dense, sparse and hybrid, filters and citations.",
    _never,
    rule="SHOULD",
)

JUDGED = (CLAIM, PROFILE)
"""Checks that are judged by the findings of all others."""
