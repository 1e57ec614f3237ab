"""Sends many queries to a running gateway: as a whole, and to each of its engines alone."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import gateway_client
from app.cli.failures import Failure
from app.cli.score_tables import progress_bar
from app.cli.terminal import one_line
from app.evaluation.judged_queries import Query
from app.evaluation.runs import ALL_ENGINES, Run, degraded_of, read_hits
from app.protocol.errors import BackendUnavailable, CapabilityMissing, InvalidParams, OptionUnsupported

if TYPE_CHECKING:
    import httpx2

REFUSALS = (InvalidParams.code, CapabilityMissing.code, OptionUnsupported.code)
"""Codes of a system that cannot honour the query (RCP §12): in the federation it would just be skipped."""
GIVE_UP = 20
"""So many requests without any answer at the beginning, and nobody is there."""

QueriesOption = Annotated[
    Path,
    typer.Option("--queries", help='Queries, as JSON lines: {"qid", "query", "params"?}.', show_default=False),
]
QrelsOption = Annotated[
    Path,
    typer.Option(
        "--qrels",
        help='Judgements: TREC lines (qid 0 docid rel), or JSON {"qid": ["docid"]} or {"qid": {"docid": rel}}.',
        show_default=False,
    ),
]
EnginesOption = Annotated[
    str | None,
    typer.Option("--engines", metavar="A,B", help="Engines to use. Default: all that are up.", show_default=False),
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, max=256, help="Concurrent requests.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for a response.")]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """How the gateway at `url` is asked: for `k` hits each time, `timeout` in seconds."""

    url: str
    k: int
    concurrency: int
    timeout: float
    ca_file: Path | None = None
    select: bool = False
    """Whether the gateway is asked to select engines."""


def engines_of(asking: RunQuery, named: str | None) -> tuple[list[str], list[str]]:
    """The engines to ask alone, and notes about those that are left out. Raises Failure if there are none."""
    if named is not None:
        names = list(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
        if not names:
            raise typer.BadParameter("names no engine", param_hint="--engines")
        return names, []
    up, notes = [], []
    for entry in gateway_client.engines(asking.url, asking.timeout, asking.ca_file):
        name, capabilities = str(entry.get("id", "?")), entry.get("capabilities")
        if entry.get("up") is not True:
            notes.append(f"{name}: left out, it is down ({one_line(entry.get('reason') or 'no reason given', 100)})")
        elif isinstance(capabilities, list) and "retrieve" not in capabilities:
            notes.append(f"{name}: left out, it does not retrieve")
        else:
            up.append(name)
    if not up:
        raise Failure("\n".join([f"no engine behind {asking.url} is up and retrieves", *(f"  {n}" for n in notes)]))
    return sorted(up), notes


def fetch_runs(queries: Sequence[Query], engines: Sequence[str | None], asking: RunQuery) -> list[Run]:
    """One run per engine (None: the whole gateway), with a progress bar. Raises Failure if nothing was answered."""
    runs = [Run(engine) for engine in engines]
    with progress_bar() as bar:
        task = bar.add_task("asking", total=len(queries) * len(runs))
        asyncio.run(_RunCollector(asking, runs, lambda: bar.advance(task)).conduct(queries))
    if not any(run.answers for run in runs):
        notes = [f"  {note}" for run in runs for note in run.notes()]
        raise Failure("\n".join(["not one query was answered", *notes]))
    return runs


class _RunCollector:
    """Every query put to every system, a few at a time."""

    def __init__(self, asking: RunQuery, runs: Sequence[Run], told: Callable[[], None]) -> None:
        self._asking = asking
        self._runs = runs
        self._told = told
        self._root = gateway_client.base_of(asking.url)
        self._heard = False
        """Whether anybody has answered yet, be it with an error."""
        self._silences = 0

    async def conduct(self, queries: Sequence[Query]) -> None:
        import httpx2

        headers, verify = gateway_client.credential(), gateway_client.trust(self._root, self._asking.ca_file)
        jobs = ((query, run) for query in queries for run in self._runs)
        # trust_env: a proxy of the environment has no business between a person and their gateway.
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=None, headers=headers, verify=verify) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self._asking.concurrency):
                group.create_task(self._work(client, jobs))

    async def _work(self, client: "httpx2.AsyncClient", jobs: Iterator[tuple[Query, Run]]) -> None:
        for query, run in jobs:
            if self._silences >= GIVE_UP and not self._heard:
                return
            params = params_for(query, run.engine, self._asking)
            answer = await self._exchange(client, {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params})
            self._keep(answer, query.qid, run)
            self._told()

    def _keep(self, answer: Mapping[str, Any] | str, qid: str, run: Run) -> None:
        """Put the answer, or why there is none, where it belongs."""
        if isinstance(answer, str):
            self._silences += 1
            run.failures[qid] = answer
            return
        self._heard = True
        error, result = answer.get("error"), answer.get("result")
        if isinstance(error, dict):
            lost = run.refusals if error.get("code") in REFUSALS else run.failures
            lost[qid] = _told(error)
        elif isinstance(result, dict) and isinstance(result.get("hits"), list):
            run.answers[qid] = read_hits(result, run.engine)
            for engine in degraded_of(result):
                run.missed[engine] = run.missed.get(engine, 0) + 1
        else:
            run.failures[qid] = f"{self._root} answers, but not as a gateway does"

    async def _exchange(self, client: "httpx2.AsyncClient", message: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """The JSON-RPC answer, or why there is none."""
        import httpx2

        try:
            async with asyncio.timeout(self._asking.timeout + gateway_client.GRACE_SECONDS):
                response = await client.post(f"{self._root}/rcp/retrieve", json=message)
            return gateway_client.read_response(response, self._root)
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL) as fault:
            return gateway_client.unreachable(fault, self._root, self._asking.timeout)
        except Failure as fault:
            return str(fault)


def _told(error: Mapping[str, Any]) -> str:
    """An error in one line; what each engine has to say matters only where all of them failed."""
    lines = gateway_client.error_text(dict(error)).split("\n")
    return one_line(" ".join(lines if error.get("code") == BackendUnavailable.code else lines[:1]), 200)


def params_for(query: Query, engine: str | None, asking: RunQuery) -> dict[str, Any]:
    """The params of one request.

    One engine alone is asked so that the fused list is its own, in its own order: with a weight that counts, without
    its confidences, and without what the gateway does to fused lists. The engine itself is asked as ever.
    """
    params = {**query.params, "query": query.text, "k": asking.k}
    params["_meta"] = {**(query.params.get("_meta") or {}), "deadlineMs": max(1, int(asking.timeout * 1000))}
    if asking.select:
        own = query.params.get("x-gateway") or {}
        params["x-gateway"] = {**own, "select": engine != ALL_ENGINES}
    if engine is None or engine == ALL_ENGINES:
        return params
    for name in ("minScore", "tokenBudget"):
        params.pop(name, None)
    fusion = query.params.get("fusion") or {}
    weights = fusion.get("weights")
    inner = {name: weights[name] for name in ("dense", "sparse") if name in weights} if type(weights) is dict else {}
    params["fusion"] = {**fusion, "weights": {**inner, engine: 1.0}}
    wishes = {key: value for key, value in (query.params.get("x-gateway") or {}).items() if key != "mmr"}
    params["x-gateway"] = {**wishes, "engines": [engine], "confidenceWeight": 0}
    return params
