"""A server examined for a test, and what came of it."""

from app.conformance.examination import Examination
from app.conformance.http_peer import HttpPeer
from app.conformance.peer import Peer
from app.conformance.subject import QueryOptions
from app.conformance.verdict import Report, Verdict


async def examined(
    server: "str | Peer",
    *only: str,
    strict: bool = True,
    timeout: float = 20.0,
    query: str = "test",
    write: bool = True,
) -> Report:
    """The report on a server, at a URL or reached already; by default it may be written to."""
    peer = HttpPeer(server, {}) if isinstance(server, str) else server
    return await Examination(peer, QueryOptions(query, write=write), strict=strict, only=only, timeout=timeout).run()


def failed(report: Report) -> dict[str, str]:
    """Id -> reason of each check that keeps a server out: those that failed, and if strict those that warned."""
    verdicts = (Verdict.FAIL, Verdict.WARN) if report.strict else (Verdict.FAIL,)
    return {finding.check.id: finding.reason for finding in report.findings if finding.verdict in verdicts}


def warned(report: Report) -> dict[str, str]:
    """Id -> reason of each check that warned."""
    return {finding.check.id: finding.reason for finding in report.findings if finding.verdict is Verdict.WARN}


def passed(report: Report) -> set[str]:
    """The ids of the checks that passed."""
    return {finding.check.id for finding in report.findings if finding.verdict is Verdict.PASS}


def skipped(report: Report) -> dict[str, str]:
    """Id -> reason of each check that was skipped."""
    return {finding.check.id: finding.reason for finding in report.findings if finding.verdict is Verdict.SKIP}
