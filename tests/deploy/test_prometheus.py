"""The alerts, asked of Prometheus' own tool: well-formed, each with a case that fires and one that stays quiet."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from docs._generate import made
from tests.support.deployment import DEPLOY, PROJECT, alerts, failed_auth, program, read, rules, said_by

CASES = sorted((DEPLOY / "prometheus" / "tests").glob("*_test.yml"))
RUNBOOK_BASE = "https://rcp-gateway.example/docs/guides"
RUNBOOK = (PROJECT / "docs" / "guides" / "runbook.md").read_text(encoding="utf-8")


def test_prometheus_accepts_its_files() -> None:
    """The configuration, with the rules that it names, is one that Prometheus would start with."""
    said = said_by(program("promtool"), "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert sum(map(int, re.findall(r"SUCCESS: (\d+) rules", said))) == len(rules())


def test_alerts_fire_and_stay_quiet() -> None:
    """Every case of deploy/prometheus/tests ends as it says."""
    assert said_by(program("promtool"), "test", "rules", *CASES).count("SUCCESS") == len(CASES)


def test_cases_do_not_depend_on_the_order_of_the_groups() -> None:
    """promtool takes the groups of rules in any order unless it is told one: then alerts would miss a step at times."""
    groups = [group["name"] for name in ("recording", "alerts") for group in read(f"prometheus/{name}.yml")["groups"]]
    for case in CASES:
        assert yaml.safe_load(case.read_text(encoding="utf-8"))["group_eval_order"] == groups


def test_a_case_that_is_wrong_is_seen(tmp_path: Path) -> None:
    """Were an alert's threshold out of reach, the cases would tell."""
    for name in ("recording.yml", "alerts.yml"):
        (tmp_path / name).write_text((DEPLOY / "prometheus" / name).read_text().replace("> 0.05", "> 50"))
    (tmp_path / "tests").mkdir()
    cases = tmp_path / "tests" / "degraded_test.yml"
    whole = yaml.safe_load(CASES[0].read_text(encoding="utf-8"))
    about = [test for test in whole["tests"] if test["alert_rule_test"][0]["alertname"] == "RcpGatewayAnswersDegraded"]
    cases.write_text(yaml.safe_dump({**whole, "tests": about}))
    said = said_by(program("promtool"), "test", "rules", cases, check=False)
    assert "FAILED" in said
    assert "RcpGatewayAnswersDegraded" in said


@pytest.mark.parametrize("alert", alerts())
def test_each_alert_has_both_cases(alert: str) -> None:
    """One in which it fires, and resolves once the cause is gone, and one in which it does not fire at all."""
    tests = [test for file in CASES for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]
    about = [[case for case in test["alert_rule_test"] if case["alertname"] == alert] for test in tests]
    found = [[bool(case["exp_alerts"]) for case in cases] for cases in about if cases]
    assert [True, False] in found
    assert [False] in found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_what_there_is(rule: dict[str, str]) -> None:
    """No rule names a metric that the gateway does not offer."""
    assert failed_auth(rule["expr"]) == set()


def test_a_metric_that_is_not_there_is_seen() -> None:
    """A slip in the name of a metric would be noticed."""
    assert failed_auth("sum(rate(rcp_gateway_reqests_total[5m]))") == {"rcp_gateway_reqests_total"}
    assert failed_auth("sum(rate(rcp_gateway_requests_total[5m])) + rcp_gateway_leg_duration_seconds_bucket") == set()


@pytest.mark.parametrize("alert", alerts())
def test_each_alert_leads_to_its_section(alert: str) -> None:
    """Severity, a sentence, and a section of the runbook under its name that says what to look at and what to do."""
    rule = alerts()[alert]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK_BASE}/runbook.md#{alert.lower()}"
    section = RUNBOOK.split(f"\n## {alert}\n", 1)[1].split("\n## ", 1)[0]
    for part in ("**Means**", "**Look**", "**Do**"):
        assert part in section


def test_the_base_of_the_runbook_is_set_with_one_command(tmp_path: Path) -> None:
    """The command of docs/guides/observe.md replaces the base in every alert."""
    page = (PROJECT / "docs" / "guides" / "observe.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^sed .*$", page, re.MULTILINE)
    (tmp_path / "deploy").mkdir()
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "deploy" / "prometheus")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)
    text = (tmp_path / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    assert text.count("runbook_url: https://wiki.example/rcp/runbook.md#") == len(alerts())


def test_the_runbook_knows_no_other_alert() -> None:
    """No section is left of an alert that is no more."""
    assert set(re.findall(r"^## (RcpGateway\w+)$", RUNBOOK, re.MULTILINE)) == set(alerts())


def test_the_copies_are_current() -> None:
    """Helm chart and operator have the rules of deploy/prometheus: `make docs` copies them."""
    for path, text in made().items():
        assert (PROJECT / path).read_text(encoding="utf-8") == text, f"{path}: say make docs"
    operator = read("kubernetes/components/monitoring/prometheusrule.yaml")
    assert [rule for group in operator["spec"]["groups"] for rule in group["rules"]] == rules()
