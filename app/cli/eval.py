"""`rcp-gateway eval`: compare a running gateway with each of its engines alone on judged queries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from app.cli.gateway_client import DEFAULT_URL, CaFileOption, UrlOption
from app.cli.run_collection import (
    ConcurrencyOption,
    EnginesOption,
    QrelsOption,
    QueriesOption,
    RunQuery,
    TimeoutOption,
    engines_of,
    fetch_runs,
)
from app.cli.score_tables import Row, differences_table, systems_table
from app.cli.terminal import answers, asides, harmless_json, one_line
from app.evaluation import measures
from app.evaluation.judged_queries import JudgedQueries, read_judged
from app.evaluation.runs import ALL_ENGINES, Run


@dataclass(frozen=True, slots=True)
class SystemScore:
    """One system: what was fetched of it, and the value of every metric for every query that it answered."""

    run: Run
    values: dict[str, measures.Values]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The gateway against one engine in one metric; `p` is corrected for the number of engines, `raw_p` is not."""

    engine: str
    metric: str
    difference: measures.Difference
    raw_p: float


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluate)


def evaluate(
    queries: QueriesOption,
    qrels: QrelsOption,
    url: UrlOption = DEFAULT_URL,
    ca_file: CaFileOption = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Number of hits requested.")] = 50,
    engines: EnginesOption = None,
    select: Annotated[
        bool,
        typer.Option("--select", help="Compare engine selection with asking all engines, instead of single engines."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    concurrency: ConcurrencyOption = 4,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Measure a running gateway, and each of its engines alone, on judged queries."""
    measures.require_libraries()
    judged = read_judged(queries, qrels)
    asking = RunQuery(url, k, concurrency, timeout, ca_file, select)
    if select and engines is not None:
        raise typer.BadParameter("cannot be combined with --select", param_hint="--engines")
    alone, left_out = ([ALL_ENGINES], []) if select else engines_of(asking, engines)
    runs = fetch_runs(judged.queries, [None, *alone], asking)
    yardstick = measures.Evaluator(judged.judgements)
    gateway, *others = [SystemScore(run, yardstick.measure(run.rankings())) for run in runs]
    with asides().status("comparing"):
        comparisons = compared(gateway, others)
    if as_json:
        report = _report(judged, k, [gateway, *others], comparisons)
        typer.echo(harmless_json(json.dumps(report, ensure_ascii=False)))
        return
    _show_tables([gateway, *others], comparisons)
    beside = asides()
    for note in [*judged.notes(), *_depth_notes(k), *left_out, *(note for run in runs for note in run.notes())]:
        beside.print(f"note: {one_line(note)}", style="yellow", soft_wrap=True)


def compared(gateway: SystemScore, engines: Sequence[SystemScore]) -> list[Comparison]:
    """The gateway against each engine, engine by engine; p-values are corrected within a metric."""
    columns = []
    for metric in measures.METRICS:
        pairs = [measures.paired(gateway.values[metric], engine.values[metric]) for engine in engines]
        raw = [measures.p_value(pair) for pair in pairs]
        columns.append(
            [
                Comparison(engine.run.name, metric, measures.Difference(measures.mean(pair), p, len(pair)), raw_p)
                for engine, pair, p, raw_p in zip(engines, pairs, measures.holm(raw), raw, strict=True)
            ]
        )
    return [comparison for row in zip(*columns, strict=True) for comparison in row]


def _report(
    judged: JudgedQueries, k: int, standings: Sequence[SystemScore], comparisons: Sequence[Comparison]
) -> dict[str, Any]:
    return {
        "k": k,
        "queries": {"judged": len(judged.queries), "leftOut": judged.unjudged},
        "systems": [_system(standing) for standing in standings],
        "significance": {
            "test": measures.TEST,
            "correction": "Holm, over the engines of a metric",
            "comparisons": [
                {
                    "engine": one.engine,
                    "metric": one.metric,
                    "queries": one.difference.queries,
                    "difference": one.difference.mean,
                    "p": one.raw_p,
                    "pHolm": one.difference.p,
                }
                for one in comparisons
            ],
        },
    }


def _system(standing: SystemScore) -> dict[str, Any]:
    run = standing.run
    return {
        "kind": "gateway" if run.engine in (None, ALL_ENGINES) else "engine",
        "id": run.engine,
        "answered": len(run.answers),
        "refused": len(run.refusals),
        "failed": len(run.failures),
        "refusals": dict(sorted(run.refusals.items())),
        "failures": dict(sorted(run.failures.items())),
        "lacking": dict(sorted(run.missed.items())),
        **_means(standing),
    }


def _means(standing: SystemScore) -> dict[str, float | None]:
    return {metric: measures.mean(values.values()) for metric, values in standing.values.items()}


def _show_tables(standings: Sequence[SystemScore], comparisons: Sequence[Comparison]) -> None:
    console = answers()
    console.print(systems_table(measures.METRICS, [_row(standing) for standing in standings]))
    names = list(dict.fromkeys(one.engine for one in comparisons))
    differences = [(name, [one.difference for one in comparisons if one.engine == name]) for name in names]
    console.print()
    console.print(differences_table(measures.METRICS, differences))
    console.print(f"\np: {measures.TEST}, Holm-corrected over the engines", style="dim")


def _row(standing: SystemScore) -> Row:
    run = standing.run
    counts = (len(run.answers), len(run.refusals), len(run.failures))
    return Row(run.name, list(_means(standing).values()), *counts)


def _depth_notes(k: int) -> list[str]:
    if k >= measures.RECALL_DEPTH:
        return []
    return [f"only {k} hits were asked for, so {measures.RECALL} is recall among those"]
