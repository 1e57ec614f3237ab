"""Runs all checks against one server, one after the other, and turns each into a finding.

Any exception of a check is caught here and becomes its failure, because the server's response caused it.
"""

import asyncio
from collections.abc import Callable, Sequence

from app.conformance import (
    delivery_checks,
    filter_checks,
    framing_checks,
    gating_checks,
    handshake_checks,
    hit_checks,
    lifetime_checks,
    method_checks,
    option_checks,
    proof,
    vector_checks,
)
from app.conformance.peer import Peer, PeerGone
from app.conformance.subject import QueryOptions, Subject
from app.conformance.verdict import Check, Departure, Finding, Report, Skipped, Tolerated, Verdict

PACKAGES = (
    handshake_checks,
    framing_checks,
    gating_checks,
    hit_checks,
    option_checks,
    filter_checks,
    delivery_checks,
    vector_checks,
    method_checks,
    lifetime_checks,
)
CHECKS: tuple[Check, ...] = tuple(check for room in PACKAGES for check in room.suite.checks)
"""All of them, in the order in which they are run."""

PATIENCE = 3
"""After so many checks in a row that got no answer the server is not asked any more."""

NEEDED = "handshake."
"""Checks that are always run: all others stand on the session that they begin."""


class Examination:
    """One server under examination."""

    def __init__(
        self, peer: Peer, wishes: QueryOptions, *, timeout: float = 10.0, strict: bool = False, only: Sequence[str] = ()
    ) -> None:
        """`timeout`: seconds for one check. `only`: ids, or their beginnings, of the checks wanted; none: all."""
        self.subject = Subject(peer, wishes)
        self._timeout = timeout
        self._strict = strict
        self._only = tuple(only)
        self._mute = 0
        self.checks = [
            check
            for check in CHECKS
            if check.over in (None, peer.kind) and (self._wanted(check) or check.id.startswith(NEEDED))
        ]

    async def run(self, heard: Callable[[Finding], None] = lambda _: None) -> Report:
        """Ask everything; `heard` is told each finding as it comes."""
        findings: list[Finding] = []
        try:
            for check in self.checks:
                finding = await self._judge(check)
                if self._wanted(check) or finding.verdict is Verdict.FAIL:
                    findings.append(finding)
                    heard(finding)
        finally:
            await self.subject.peer.close()
        return self._report(findings, heard)

    def _report(self, findings: list[Finding], heard: Callable[[Finding], None]) -> Report:
        """What the findings come to; the claim is judged only if every check was run."""
        subject = self.subject
        proved = None
        if not self._only:
            proved = proof.proved(findings, subject.capabilities)
            whole = (
                proof.judged(subject.claimed, findings, subject.capabilities),
                proof.profile(subject.claimed, subject.capabilities),
            )
            for finding in whole:
                if finding is not None:
                    findings.append(finding)
                    heard(finding)
        server = subject.described.get("server")
        return Report(
            server=server if isinstance(server, dict) else {},
            claimed=subject.claimed if isinstance(subject.claimed, str) else None,
            proved=proved,
            findings=tuple(findings),
            strict=self._strict,
        )

    def _wanted(self, check: Check) -> bool:
        return not self._only or check.id.startswith(self._only)

    async def _judge(self, check: Check) -> Finding:
        """One check, if there is something to check."""
        subject = self.subject
        if self._mute >= PATIENCE:
            return Finding(check, Verdict.FAIL, f"not asked: the last {PATIENCE} checks got no answer")
        lacking = [name for name in check.needs if not subject.offers(name)]
        if lacking:
            return Finding(check, Verdict.SKIP, f"not advertised: {', '.join(lacking)}")
        return await self._run(check)

    async def _run(self, check: Check) -> Finding:
        try:
            async with asyncio.timeout(self._timeout):
                await check.run(self.subject)
        except Skipped as moot:
            finding = Finding(check, Verdict.SKIP, str(moot))
        except Tolerated as departure:
            finding = Finding(check, Verdict.WARN, str(departure))
        except Departure as departure:
            finding = Finding(check, _broken(check), str(departure))
        except TimeoutError:
            return await self._lost(check, f"no answer within {self._timeout:g} seconds")
        except PeerGone as gone:
            return await self._lost(check, str(gone))
        except Exception as fault:  # noqa: BLE001 - the edge of a check: what the server sent was not foreseen
            told = f"the answer cannot be made sense of ({type(fault).__name__}: {fault})"
            finding = Finding(check, _broken(check), told)
        else:
            finding = Finding(check, Verdict.PASS)
        self._mute = 0
        return finding

    async def _lost(self, check: Check, why: str) -> Finding:
        """The server did not answer: that is a failure, and the next check begins anew."""
        self._mute += 1
        try:
            async with asyncio.timeout(self._timeout):
                if await self.subject.peer.renew() and self.subject.described:
                    await handshake_checks.shake_hands(self.subject)
        except (TimeoutError, PeerGone, Departure) as fault:
            why = f"{why}; started again, it does not shake hands either ({fault or 'no answer'})"
        return Finding(check, Verdict.FAIL, why)

    def __repr__(self) -> str:
        state = f", mute for {self._mute} checks" if self._mute else ""
        return f"<Examination of {self.subject.peer!r}, {len(self.checks)} checks{state}>"


def _broken(check: Check) -> Verdict:
    return Verdict.FAIL if check.rule == "MUST" else Verdict.WARN
