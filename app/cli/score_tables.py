"""Measured systems as a person reads them: a bar meanwhile, then tables of means, differences and p-values.

It decides columns, colours and digits. It refuses to know how anything was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.cli.terminal import asides, one_line

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

SIGNIFICANT = 0.05
"""A p-value below this is called significant."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system: a mean for every metric, None where there is nothing to take a mean of."""

    name: str
    means: Sequence[float | None]
    answered: int
    refused: int
    failed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How far apart two systems are in one metric, over `queries` queries that both answered."""

    mean: float | None
    p: float
    queries: int


def progress_bar() -> "Progress":
    """A bar on stderr that leaves nothing behind, and is not there at all if nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = asides()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def systems_table(metrics: Sequence[str], rows: Sequence[Row]) -> "Table":
    """One line a system; the first is the gateway."""
    from rich.text import Text

    table = _table("", *metrics, "answered", "refused", "failed")
    for place, row in enumerate(rows):
        name = Text(one_line(row.name, 60), style="cyan" if place else "bold")
        failed = Text(str(row.failed), style="red" if row.failed else "")
        table.add_row(name, *map(number, row.means), str(row.answered), str(row.refused), failed)
    return table


def differences_table(metrics: Sequence[str], rows: Sequence[tuple[str, Sequence[Difference]]]) -> "Table":
    """One line an engine: what the gateway is better by in each metric, and the p-value of that."""
    from rich.text import Text

    table = _table("gateway against", *(column for metric in metrics for column in (metric, "p")), "queries")
    for engine, differences in rows:
        cells = [cell for difference in differences for cell in cells_of(difference)]
        table.add_row(Text(one_line(engine, 60), style="cyan"), *cells, str(differences[0].queries))
    return table


def change_table(rows: Sequence[tuple[str, float | None, float | None, Difference]]) -> "Table":
    """One line a metric: now, with the settings found, and the difference with its p-value."""
    table = _table("", "present", "found", "difference", "p")
    for metric, present, found, difference in rows:
        table.add_row(metric, number(present), number(found), *cells_of(difference))
    return table


def _table(first: str, *columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def cells_of(difference: Difference) -> tuple["Text", "Text"]:
    """The difference and its p-value, in colour if it is significant."""
    from rich.text import Text

    style = ""
    if difference.mean and difference.p < SIGNIFICANT:
        style = "green" if difference.mean > 0 else "red"
    told = "-" if difference.mean is None else f"{difference.mean:+.4f}"
    return Text(told, style=style), Text(p_told(difference.p), style=style)


def number(value: float | None) -> str:
    """A mean with four digits."""
    return "-" if value is None else f"{value:.4f}"


def p_told(p: float) -> str:
    """A p-value with three digits."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
