"""`rcp-gateway tune`: search better weights, rrfK and confidence weight for a running gateway on judged queries.

It changes nothing: it prints lines to paste. The search is in `evaluation/fusion_search.py`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.cli.current_fusion import CurrentFusion, ask_gateway, read_files
from app.cli.failures import Failure
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
from app.cli.score_tables import progress_bar
from app.cli.terminal import answers, asides, harmless_json, one_line
from app.cli.tuning_report import report_of, show_tuning
from app.evaluation import measures
from app.evaluation.fusion_search import FusionParameters, TrialPool, trials_of
from app.evaluation.judged_queries import JudgedQueries, read_judged
from app.evaluation.runs import Run, counted
from app.evaluation.tuning import MIN_QUERIES, Tuning, tune_pool

DEPTH = 50
"""Hits asked of every engine."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tune)


def tune(
    queries: QueriesOption,
    qrels: QrelsOption,
    url: UrlOption = DEFAULT_URL,
    ca_file: CaFileOption = None,
    registry: Annotated[
        Path | None, typer.Option(help="Registry with the present weights.", show_default="from the gateway")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings with the present fusion.", show_default="from the gateway")
    ] = None,
    engines: EnginesOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the split into two halves.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    concurrency: ConcurrencyOption = 4,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Search better fusion settings on half of the judged queries and validate them on the other half."""
    measures.require_libraries()
    stated = read_files(registry, config)
    judged = read_judged(queries, qrels)
    asking = RunQuery(url, DEPTH, concurrency, timeout, ca_file)
    alone, left_out = engines_of(asking, engines)
    present = stated.over(ask_gateway(url, judged.queries[0].text, timeout))
    runs = fetch_runs(judged.queries, alone, asking)
    pool = _pool_of(runs, judged, present)
    names = pool.engines()
    tuning = _tuned(pool, present.blend(names), judged, seed)
    notes = [*judged.notes(), *left_out, *_pool_notes(runs, judged, pool), *present.notes(names), *tuning.notes()]
    if as_json:
        counts = {
            "judged": len(judged.queries),
            "leftOut": judged.unjudged,
            "incomplete": len(judged.queries) - len(pool.queries),
            "searched": tuning.searched,
            "heldOut": tuning.held_out,
        }
        report = {"seed": seed, "k": DEPTH, "queries": counts, **report_of(tuning), "notes": notes}
        typer.echo(harmless_json(json.dumps(report, ensure_ascii=False)))
        return
    show_tuning(tuning, answers())
    beside = asides()
    for note in notes:
        beside.print(f"note: {one_line(note)}", style="yellow", soft_wrap=True)


def _pool_of(runs: Sequence[Run], judged: JudgedQueries, present: CurrentFusion) -> TrialPool:
    """The queries at which no engine failed; one that never answered is no part of it. Raises Failure."""
    living = [run for run in runs if run.answers]
    lists = {
        query.qid: {run.name: run.answers[query.qid] for run in living if query.qid in run.answers}
        for query in judged.queries
        if not any(query.qid in run.failures for run in living)
    }
    pool = TrialPool(
        {qid: answered for qid, answered in lists.items() if answered},
        present.readings,
        DEPTH,
        present.silent or "scores",
        present.silents,
    )
    problem = None
    if len(living) < 2:
        problem = f"only one engine answered ({living[0].name}); there is nothing to fuse and so nothing to tune"
    elif len(pool.queries) < MIN_QUERIES:
        problem = f"no more than {len(pool.queries)} queries went without failure; tune needs {MIN_QUERIES}"
    if problem is not None:
        raise Failure("\n".join([problem, *(f"  {note}" for run in runs for note in run.notes())]))
    return pool


def _tuned(pool: TrialPool, present: FusionParameters, judged: JudgedQueries, seed: int) -> Tuning:
    with progress_bar() as bar:
        task = bar.add_task("searching", total=trials_of(len(present.weights)))
        return tune_pool(pool, present, judged.judgements, seed, lambda: bar.advance(task))


def _pool_notes(runs: Sequence[Run], judged: JudgedQueries, pool: TrialPool) -> list[str]:
    notes = [note for run in runs for note in run.notes()]
    notes += [f"{run.name}: left out, it answered no query" for run in runs if not run.answers]
    lost = len(judged.queries) - len(pool.queries)
    if lost:
        notes.append(f"{counted(lost, 'query', 'queries')} left out: an engine failed, or all refused")
    return notes
