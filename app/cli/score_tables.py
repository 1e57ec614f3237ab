"""Terminal output of `eval` and `tune`: a progress bar, and tables of means, differences and p-values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.cli.terminal import asides, one_line
from app.evaluation.measures import SIGNIFICANT, Difference

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Row:
    """One measured system: the mean of every metric (None without answered queries) and counts of queries."""

    name: str
    means: Sequence[float | None]
    answered: int
    refused: int
    failed: int


def progress_bar() -> "Progress":
    """A progress bar on stderr, removed when done; disabled if stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = asides()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def systems_table(metrics: Sequence[str], rows: Sequence[Row]) -> "Table":
    """One row per system; the first is the gateway."""
    from rich.text import Text

    table = _table("", *metrics, "answered", "refused", "failed")
    for place, row in enumerate(rows):
        name = Text(one_line(row.name, 60), style="cyan" if place else "bold")
        failed = Text(str(row.failed), style="red" if row.failed else "")
        table.add_row(name, *map(number, row.means), str(row.answered), str(row.refused), failed)
    return table


def differences_table(metrics: Sequence[str], rows: Sequence[tuple[str, Sequence[Difference]]]) -> "Table":
    """One row per engine: for each metric the gain of the gateway over it, with its p-value."""
    from rich.text import Text

    table = _table("gateway against", *(column for metric in metrics for column in (metric, "p")), "queries")
    for engine, differences in rows:
        cells = [cell for difference in differences for cell in cells_of(difference)]
        table.add_row(Text(one_line(engine, 60), style="cyan"), *cells, str(differences[0].queries))
    return table


def change_table(rows: Sequence[tuple[str, float | None, float | None, Difference]]) -> "Table":
    """One row per metric: present settings, found settings, and the difference with its p-value."""
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
    """The cells of a difference and its p-value, coloured if significant."""
    from rich.text import Text

    style = ""
    if difference.mean and difference.p < SIGNIFICANT:
        style = "green" if difference.mean > 0 else "red"
    text = "-" if difference.mean is None else f"{difference.mean:+.4f}"
    return Text(text, style=style), Text(p_text(difference.p), style=style)


def number(value: float | None) -> str:
    """A mean with four digits."""
    return "-" if value is None else f"{value:.4f}"


def p_text(p: float) -> str:
    """A p-value with three digits."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
