"""The dashboard: every query names what there is and can be read, and Grafana finds it where it looks."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployment import DEPLOY, failed_auth, metrics, program, read, said_by

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def test_every_part_has_panels() -> None:
    """Each row has panels of its own, none on top of another."""
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows[:3] == ["Overview", "Engines", "Tenants"]
    kinds = [panel["type"] == "row" for panel in DASHBOARD["panels"]]
    assert kinds[0]
    assert not kinds[-1]
    assert (True, True) not in pairwise(kinds), "a row is empty"
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_queries_ask_for_what_there_is(title: str, query: str) -> None:
    """Each names metrics of ours, all of which the gateway offers, and narrows them to the chosen gateways."""
    assert failed_auth(query) == set(), title
    assert "rcp_gateway" in query
    assert query.count('job=~"$job"') == len(re.findall(r"\brcp_gateway[\w:]*", query))
    assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES, "__rate_interval"}


def test_prometheus_can_read_the_queries(tmp_path: Path) -> None:
    """Written as rules, with the variables filled in, all queries pass Prometheus' own tool."""
    asked = [re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "5m")) for _, query in QUERIES]
    rules = [{"record": f"query:{place}", "expr": query} for place, query in enumerate(asked)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"SUCCESS: {len(QUERIES)} rules found" in said_by(program("promtool"), "check", "rules", file)


def test_panels_explain_themselves() -> None:
    """Each has a sentence on what it shows, a unit, and the chosen source of data."""
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_variables_are_filled_from_what_there_is() -> None:
    """Gateways, engines and tenants are offered for choice by the labels of metrics that there are."""
    assert set(VARIABLES) == {"datasource", "job", "engine", "tenant", "outcome", "call_outcome"}
    for name in VARIABLES.keys() - {"datasource"}:
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", VARIABLES[name]["definition"]).groups()  # type: ignore[union-attr]
        assert metric in metrics()
        assert label == name.removeprefix("call_")


def test_every_metric_is_on_a_panel() -> None:
    """Each metric of docs/reference/signals.md is asked for by a panel, unless its row says `not for panels`."""
    page = (DEPLOY.parent / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(rcp_gateway_\w+)` \|(.*)$", page, re.MULTILINE)
    assert len(rows) > 40
    asked = " ".join(query for _, query in QUERIES)
    missing = [
        name
        for name, cells in rows
        if "not for panels" not in cells and not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", asked)
    ]
    assert missing == []


def test_outcomes_can_be_filtered() -> None:
    """Panels of requests and of engine calls follow the variables for outcomes."""
    for variable in ("$outcome", "$call_outcome"):
        assert any(f'outcome=~"{variable}"' in query for _, query in QUERIES)


def test_it_is_provided() -> None:
    """Source and folder are those that docker-compose.yml mounts."""
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read("grafana/provisioning/dashboards/rcp-gateway.yml")["providers"]
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8"))
    mounts = dict(volume.split(":")[:2][::-1] for volume in compose["services"]["grafana"]["volumes"])
    assert mounts[f"{provider['options']['path']}/dashboard.json"] == "./deploy/grafana/dashboard.json"
    assert mounts["/etc/grafana/provisioning"] == "./deploy/grafana/provisioning"
