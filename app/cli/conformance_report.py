"""Output of `conformance`: a progress bar, then a table or one JSON object."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from app.cli.score_tables import progress_bar
from app.cli.terminal import one_line
from app.conformance.verdict import Finding, Report, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.SKIP: "dim"}
RULES = {"MUST, tolerated": "(MUST)"}
"""Rules with a shorter form in the table."""

CLAIM = "claim.level"
"""Id of the check that compares the claimed level; absent if only some checks were run."""

NOT_ASKED = "not asked: "
"""Prefix of the reason of checks that were skipped because the server stopped answering."""


@contextmanager
def show_finding_count(total: int) -> Iterator[Callable[[Finding], None]]:
    """A progress bar; the yielded function advances it by one finding."""
    with progress_bar() as bar:
        task = bar.add_task("checking", total=total)
        yield lambda finding: bar.update(task, advance=1, description=f"{finding.check.id:<28}")


def report_of(report: Report, target: str) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "target": target,
        "server": report.server,
        "claimed": report.claimed,
        "proved": report.proved,
        "admitted": report.admitted,
        "counts": {verdict.value: report.count(verdict) for verdict in Verdict},
        "checks": [_entry(finding) for finding in report.findings],
    }


def show_report(report: Report, console: "Console") -> None:
    """A row per check, then the conclusion. Checks that were not run are only counted."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "level", "rule", "RCP"):
        table.add_column(column, no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    asked = [finding for finding in report.findings if not finding.reason.startswith(NOT_ASKED)]
    for finding in asked:
        check, style = finding.check, STYLES[finding.verdict]
        verdict = Text(finding.verdict.value, style=style)
        table.add_row(
            verdict,
            Text(check.id),
            check.level,
            RULES.get(check.rule, check.rule),
            f"§{check.section}",
            _explanation_of(finding),
        )
    console.print(table)
    console.print()
    if len(asked) < len(report.findings):
        unasked = len(report.findings) - len(asked)
        console.print(f"{unasked} checks were not run and count as failed, because the server stopped answering")
    console.print(Text(_conclusion(report), style="green" if report.admitted else "red"))


def _explanation_of(finding: Finding) -> "Text":
    """The sentence of a passed check, the reason of a skipped one, both for a broken rule."""
    from rich.text import Text

    reason = one_line(finding.reason, 400)
    match finding.verdict:
        case Verdict.PASS:
            return Text(finding.check.sentence, style="dim")
        case Verdict.SKIP:
            return Text(reason, style="dim")
        case Verdict.FAIL | Verdict.WARN:
            return Text.assemble((f"{finding.check.sentence}\n", "dim"), (reason, STYLES[finding.verdict]))


def _conclusion(report: Report) -> str:
    label = " ".join(str(report.server.get(key, "?")) for key in ("name", "version"))
    name = one_line(label, 100) if report.server else "the server"
    counts = ", ".join(
        f"{report.count(verdict)} {word}"
        for verdict, word in (
            (Verdict.PASS, "passed"),
            (Verdict.FAIL, "failed"),
            (Verdict.WARN, "warned"),
            (Verdict.SKIP, "skipped"),
        )
    )
    claimed = one_line(report.claimed or "no level", 40)
    judged = any(finding.check.id == CLAIM for finding in report.findings)
    proved = f", proved {report.proved or 'none'}" if judged else "; a part of the checks proves no level"
    verdict = "admitted" if report.admitted else "not admitted"
    return f"{name}: {counts}; claims {claimed}{proved}: {verdict}"


def _entry(finding: Finding) -> dict[str, Any]:
    check = finding.check
    entry: dict[str, Any] = {
        "id": check.id,
        "level": check.level,
        "section": check.section,
        "rule": check.rule,
        "sentence": check.sentence,
        "verdict": finding.verdict.value,
    }
    if finding.reason:
        entry["reason"] = finding.reason
    return entry
