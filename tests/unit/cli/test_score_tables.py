"""How measurements look."""

from typing import Any

from rich.console import Console

from app.cli.score_tables import (
    Difference,
    Row,
    change_table,
    differences_table,
    number,
    p_text,
    progress_bar,
    systems_table,
)


def shown(table: Any) -> list[list[str]]:
    """The words of each line, without white space at the ends."""
    console = Console(width=120, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines()]


def test_a_system_has_a_line() -> None:
    """Its means with four digits, a dash where there is none, and what became of its queries."""
    rows = [Row("gateway", (0.5, 0.25), 3, 1, 2), Row("do\x1bcs", (None, 1.0), 0, 0, 6)]
    assert shown(systems_table(("A", "B"), rows)) == [
        ["A", "B", "answered", "refused", "failed"],
        ["gateway", "0.5000", "0.2500", "3", "1", "2"],
        ["do�cs", "-", "1.0000", "0", "0", "6"],
    ]


def test_an_engine_is_compared_metric_by_metric() -> None:
    """The difference with its sign, then the p-value; how many queries it is about at the end."""
    differences = [Difference(0.125, 0.0004, 7), Difference(-0.5, 0.05, 7)]
    assert shown(differences_table(("A", "B"), [("docs", differences)])) == [
        ["gateway", "against", "A", "p", "B", "p", "queries"],
        ["docs", "+0.1250", "<0.001", "-0.5000", "0.050", "7"],
    ]


def test_a_change_is_shown_before_and_after() -> None:
    """Present, found, difference, p."""
    assert shown(change_table([("A", 0.5, 0.75, Difference(0.25, 0.01, 4))]))[1] == [
        *("A", "0.5000", "0.7500", "+0.2500", "0.010"),
    ]
    assert shown(change_table([("A", None, None, Difference(None, 1.0, 0))]))[1] == ["A", "-", "-", "-", "1.000"]
    assert (number(0.12345), p_text(0.001)) == ("0.1235", "0.001")


def test_a_bar_is_for_terminals_only() -> None:
    """Where nobody looks, nothing is drawn."""
    assert progress_bar().disable
