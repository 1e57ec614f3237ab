"""Checks and their results: pass, fail, warn or skip, with a reason.

A check reports by raising; a check that returns has passed. A broken MUST fails, a broken SHOULD warns.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Level = Literal["L0", "L1", "L2"]
LEVELS: tuple[Level, ...] = ("L0", "L1", "L2")

Rule = Literal["MUST", "MUST, tolerated", "SHOULD", "MAY"]
"""How binding a rule of RCP is. Tolerated: servers on the published SDKs break it, and no client depends on it."""


class Verdict(StrEnum):
    """What became of one check."""

    PASS = "pass"
    FAIL = "fail"
    """A MUST is broken."""
    WARN = "warn"
    """A SHOULD or MAY is broken, or a MUST that is tolerated; the MUSTs of the check hold."""
    SKIP = "skip"


class Departure(Exception):
    """The server does what RCP does not allow; the text says what was seen and what was wanted."""


class Tolerated(Exception):
    """A departure that breaks no MUST, or one that servers on the published SDKs share: it is a warning."""


class Skipped(Exception):
    """There is nothing to check here; the text says what would have to be there."""


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence of RCP, and how to find out whether a server keeps it."""

    id: str
    level: Level
    section: str
    sentence: str
    run: Callable[[Any], Awaitable[None]]
    needs: tuple[str, ...] = ()
    """Capabilities that must be advertised, else there is nothing to check."""
    over: Literal["http", "stdio"] | None = None
    """The only transport it can be checked over; None: any."""
    rule: Rule = "MUST"

    @property
    def group(self) -> str:
        """What the check is about: the part of its id before the dot."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one check. `reason` is empty only for a pass."""

    check: Check
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all checks of one server."""

    server: dict[str, Any] = field(default_factory=dict)
    """`name` and `version` as it gave them."""
    claimed: str | None = None
    """The level that it claims (RCP §14), if any."""
    proved: Level | None = None
    """The level that the findings prove; None below L0, and when only some of the checks were run."""
    findings: tuple[Finding, ...] = ()
    strict: bool = False
    """Whether warnings keep a server out as well."""

    def count(self, verdict: Verdict) -> int:
        """How many checks ended so."""
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def admitted(self) -> bool:
        """Whether every MUST of the claimed level and those below it holds; if strict, whether everything does.

        Claiming more than is proved is a failed check of L0. A server that claims nothing is held to every level.
        """
        if self.strict:
            return not any(finding.verdict in (Verdict.FAIL, Verdict.WARN) for finding in self.findings)
        held_to = LEVELS if self.claimed not in LEVELS else LEVELS[: LEVELS.index(self.claimed) + 1]
        return not any(finding.verdict is Verdict.FAIL and finding.check.level in held_to for finding in self.findings)
