"""How findings are shown and written down."""

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from app.cli.conformance_report import report_of, show_report
from app.conformance.verdict import Check, Finding, Report, Verdict


async def never(_: Any) -> None:
    """A check that is not run."""


CHECK = Check("group.name", "L1", "7.7", "It does what it should.", never)


def shown(*findings: Finding, **more: Any) -> str:
    """What a person reads."""
    out = io.StringIO()
    show_report(Report(findings=findings, **more), Console(file=out, width=100))
    return out.getvalue()


def test_each_verdict_has_its_words() -> None:
    """The sentence for a pass, the reason for a skip, both for a failure."""
    assert "It does what it should." in shown(Finding(CHECK, Verdict.PASS))
    skip = shown(Finding(CHECK, Verdict.SKIP, "not advertised: group"))
    assert "not advertised: group" in skip
    assert "It does" not in skip
    fail = shown(Finding(CHECK, Verdict.FAIL, "it did not"))
    assert "It does what it should." in fail
    assert "it did not" in fail
    warning = shown(Finding(replace(CHECK, rule="SHOULD"), Verdict.WARN, "it might have"))
    assert "SHOULD" in warning
    assert "It does what it should." in warning
    assert "it might have" in warning


def test_a_server_that_says_nothing_has_no_name() -> None:
    """Missing parts are words and question marks, not errors."""
    part = "the server: 1 passed, 0 failed, 0 warned, 0 skipped; claims no level; a part of the checks proves no level"
    assert part in " ".join(shown(Finding(CHECK, Verdict.PASS)).split())
    whole = shown(Finding(replace(CHECK, id="claim.level"), Verdict.PASS), claimed="L0", proved="L0")
    assert "claims L0, proved L0" in whole
    assert "a 1: " in shown(server={"name": "a", "version": 1})
    assert "a ?: " in shown(server={"name": "a"})


def test_checks_that_were_not_asked_are_counted() -> None:
    """They have no line of their own."""
    text = shown(*[Finding(CHECK, Verdict.FAIL, "not asked: the last 3 checks got no answer")] * 4)
    assert "group.name" not in text
    assert "4 checks were not run" in text


def test_the_report_as_json() -> None:
    """Reasons only where there are any; counts of every verdict; each rule says whether it is a MUST."""
    findings = (Finding(CHECK, Verdict.PASS), Finding(replace(CHECK, rule="SHOULD"), Verdict.WARN, "x"))
    report = Report(server={"name": "a"}, claimed="L1", proved="L0", findings=findings)
    written = report_of(report, "http://a/rcp")
    assert written["counts"] == {"pass": 1, "fail": 0, "warn": 1, "skip": 0}
    assert written["admitted"] is True
    told = {"id": "group.name", "level": "L1", "section": "7.7", "sentence": CHECK.sentence}
    assert written["checks"] == [
        {**told, "rule": "MUST", "verdict": "pass"},
        {**told, "rule": "SHOULD", "verdict": "warn", "reason": "x"},
    ]
