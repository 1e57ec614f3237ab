"""docs/reference/signals.md agrees with the code: each metric with its type and labels, each log event, each alert."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from app.main import build_app
from tests.support.running_gateway import made_state
from tests.support.tenancy import tenant

PROJECT = Path(__file__).parents[1]
PAGE = (PROJECT / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
LEVELS = {"debug", "info", "warning", "error", "exception"}

ENTRIES = [
    {"id": "docs", "url": "http://127.0.0.1:9/rcp"},
    {"id": "code", "url": "http://127.0.0.1:9/rcp", "replicas": ["http://127.0.0.1:8/rcp"]},
    {"id": "next", "url": "http://127.0.0.1:7/rcp", "shadow": {"share": 0.1, "of": "docs"}},
]


def rows(heading: str) -> dict[str, list[str]]:
    """Name -> the other cells of its row, of all tables under this heading; no name twice."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    assert len(found) == len(dict(found)), "a name has two rows"
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def metrics() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(name, type, labels) of every metric that a gateway exposes."""
    state = made_state(ENTRIES, tenants={"team": tenant("docs", keys=("k" * 32,))})
    build_app(state)  # the MCP endpoint declares its tools
    state.metrics.sources.show({"team": (True, 1, 0.0)})
    for family in state.metrics.registry.collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert family.samples, f"{family.name} has no series before the first request"
        yield family.name + ("_total" if family.type == "counter" else ""), family.type, tuple(sorted(labels))


def test_every_metric_is_described() -> None:
    """Each metric has a row with its type, its labels and what it means."""
    described = rows("Metrics")
    for name, kind, labels in metrics():
        assert name in described, f"docs/reference/signals.md does not say what {name} means"
        said_kind, said_labels, meaning, *_ = described[name]
        assert said_kind == kind, name
        assert tuple(sorted(re.findall(r"`(\w+)`", said_labels))) == labels, name
        assert len(meaning) > 10, name


def test_every_metric_has_our_name_and_base_units() -> None:
    """One scheme: `rcp_gateway_`, small letters, seconds and no smaller or larger unit."""
    for name, _, _ in metrics():
        assert re.fullmatch(r"rcp_gateway(_[a-z]+)+", name), name
        assert not re.search(r"_(ms|millis\w*|minutes|percent|kb|mb)\b", name), name


def test_every_log_event_is_described() -> None:
    """Each event that the code may log has a row with its level and meaning."""
    described = rows("Log")
    events = {event for path in (PROJECT / "app").rglob("*.py") for event in events_in(path)}
    assert {"request", "breaker_opened", "log_lines_lost", "id_collision"} <= events, "events are not found any more"
    assert not events - described.keys()
    assert all(cells[0] in LEVELS and cells[1] for cells in described.values())


def events_in(path: Path) -> set[str]:
    """The events that a module logs: the first argument of a call at a level of a logger, and `"event": ...`."""
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r'\\?"event\\?": \\?"(\w+)', text)) if path.parent.name == "telemetry" else set()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args and at_a_level(call.func):
                    found |= words(call.args[0], function)
    return found


def at_a_level(called: ast.expr) -> bool:
    """Whether what is called is a method like `log.info`, or a choice between such."""
    if isinstance(called, ast.IfExp):
        return at_a_level(called.body) and at_a_level(called.orelse)
    return isinstance(called, ast.Attribute) and called.attr in LEVELS and "log" in ast.unparse(called.value)


def words(argument: ast.expr, function: ast.AST) -> set[str]:
    """What an event may be: a text as it is, or the texts of which a name in the function is chosen."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    if isinstance(argument, ast.IfExp):
        return words(argument.body, function) | words(argument.orelse, function)
    assert isinstance(argument, ast.Name), f"cannot tell which events {ast.unparse(argument)} is"
    chosen: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and argument.id in [ast.unparse(target) for target in node.targets]:
            values = [value for made in ast.walk(node.value) if isinstance(made, ast.Dict) for value in made.values]
            chosen |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
    assert chosen, f"cannot tell which events {argument.id} is"
    return chosen


def test_every_alert_is_described() -> None:
    """Each alert has a row that says what it means and what to do."""
    described = rows("Alerts")
    for path in (PROJECT / "deploy").rglob("alerts*.y*ml"):
        groups = yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", [])
        assert not {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule} - described.keys()


def test_nothing_is_described_twice_or_without_a_meaning() -> None:
    """Every row of every table says something."""
    for heading, column in (("Metrics", 2), ("Log", 1), ("Alerts", 0)):
        assert rows(heading)
        assert all(cells[column] for cells in rows(heading).values())
