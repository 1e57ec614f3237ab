"""Which level the findings prove, and whether that is what the server claims (RCP §14). Pure.

It decides what each level takes. A level is proved by checks that passed: what had to be skipped proves nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.conformance.verdict import LEVELS, Check, Finding, Level, Verdict

MODES = ("dense", "sparse", "hybrid")

L1_PASSES = ("options.modes", "retrieve.scores", "retrieve.k", "retrieve.min-score", "filter.fields", "citations.shape")
"""Checks that L1 wants passed, and not skipped."""

BEYOND = ("rerank.scores", "multi.matrices", "graph.results", "transform.queries")
DELIVERY = ("stream.progress", "pages.no-repeats")
"""L2 wants one of each passed."""

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
    yield from (
        f"{finding.check.id} failed" for finding in findings if _fails(finding) and finding.check.level == level
    )
    passed = {finding.check.id for finding in findings if finding.verdict is Verdict.PASS}
    if level == "L0" and "handshake.initialize" not in passed:
        yield "handshake.initialize did not pass"
    if level == "L1":
        yield from _lacking(capabilities)
        yield from (f"{id} did not pass" for id in L1_PASSES if id not in passed)
    if level == "L2":
        yield from (f"none of {', '.join(choice)} passed" for choice in (BEYOND, DELIVERY) if not passed & {*choice})


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


def _fails(finding: Finding) -> bool:
    return finding.verdict is Verdict.FAIL


def _lacking(capabilities: Capabilities) -> Iterable[str]:
    """What L1 wants advertised and is not."""
    offer = capabilities.get("retrieve")
    modes = offer.get("modes") if isinstance(offer, dict) else None
    missing = [mode for mode in MODES if not isinstance(modes, list) or mode not in modes]
    if missing:
        yield f"retrieve.modes lacks {', '.join(missing)}"
    yield from (f"{name} is not advertised" for name in ("filter", "citations") if name not in capabilities)


async def _never(_: Any) -> None:
    raise AssertionError("the claim is judged by the findings and not by asking")


CLAIM = Check("claim.level", "L0", "14", "The level that is claimed is proved, by checks that passed.", _never)
