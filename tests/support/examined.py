"""A server examined for a test, and what came of it."""

from app.conformance.examination import Examination
from app.conformance.http import HttpPeer
from app.conformance.peer import Peer
from app.conformance.subject import Wishes
from app.conformance.verdict import Report, Verdict


async def examined(
    server: "str | Peer", *only: str, strict: bool = True, timeout: float = 20.0, query: str = "test"
) -> Report:
    """The report on a server, at a URL or reached already; it may be written to."""
    peer = HttpPeer(server, {}) if isinstance(server, str) else server
    return await Examination(peer, Wishes(query, write=True), strict=strict, only=only, timeout=timeout).run()


def failed(report: Report) -> dict[str, str]:
    """Id -> reason of each check that failed."""
    return {finding.check.id: finding.reason for finding in report.findings if finding.verdict is Verdict.FAIL}


def passed(report: Report) -> set[str]:
    """The ids of the checks that passed."""
    return {finding.check.id for finding in report.findings if finding.verdict is Verdict.PASS}


def skipped(report: Report) -> dict[str, str]:
    """Id -> reason of each check that was skipped."""
    return {finding.check.id: finding.reason for finding in report.findings if finding.verdict is Verdict.SKIP}
