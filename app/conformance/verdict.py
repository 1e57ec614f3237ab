"""What a check is and what may become of it: pass, fail or skip, always with a reason that a person can act on.

Checks say what they found by raising; a check that returns has passed. This module refuses to know what is checked.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Level = Literal["L0", "L1", "L2"]
LEVELS: tuple[Level, ...] = ("L0", "L1", "L2")


class Verdict(StrEnum):
    """What became of one check."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class Departure(Exception):
    """The server does what RCP does not allow; the text says what was seen and what was wanted."""


class Tolerated(Exception):
    """A departure that servers built on the published SDKs share, and that harms nobody: it fails only if strict."""


class Moot(Exception):
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
    tolerated: bool = False
    """Skipped for a departure that counts only if strict."""


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

    def count(self, verdict: Verdict) -> int:
        """How many checks ended so."""
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def admitted(self) -> bool:
        """Whether nothing failed; claiming too much is a failed check like others."""
        return self.count(Verdict.FAIL) == 0
