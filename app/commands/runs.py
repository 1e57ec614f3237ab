"""A running gateway asked many questions: what it returns for each, and what each of its engines alone would have.

It decides how one engine is asked for its own list, how many requests are under way at once, and when to give up.
It refuses to know which answers are good.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands import remote
from app.commands.failure import Failure
from app.commands.judged import Query
from app.commands.terminal import asides, one_line

if TYPE_CHECKING:
    import httpx2

GIVE_UP = 20
"""So many requests without any answer at the beginning, and nobody is there."""

EnginesOption = Annotated[
    str | None, typer.Option("--engines", metavar="A,B", help="These engines, by default all that are up.")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, max=256, help="Requests under way at once.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for an answer.")]

Hit = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asking:
    """How the gateway at `url` is asked: for `k` hits each time, `timeout` in seconds."""

    url: str
    k: int
    concurrency: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one system returned: an engine alone, or the whole gateway where `engine` is None."""

    engine: str | None
    answers: dict[str, list[Hit]] = field(default_factory=dict)
    """Query id -> hits, best first, each `{id, score, confidence?}` with a stringified id."""
    failures: dict[str, str] = field(default_factory=dict)
    """Query id -> why there is no answer."""
    missed: dict[str, int] = field(default_factory=dict)
    """Engine -> in how many answers it was missing because it failed."""

    @property
    def name(self) -> str:
        """As it is called in tables."""
        return "gateway" if self.engine is None else self.engine

    def rankings(self) -> dict[str, list[str]]:
        """Query id -> document ids, best first."""
        return {qid: [hit["id"] for hit in hits] for qid, hits in self.answers.items()}

    def notes(self) -> Iterator[str]:
        """What to say about answers that failed, or that lack an engine."""
        if self.failures:
            first = next(iter(self.failures.values()))
            yield f"{self.name}: {len(self.failures)} queries failed, the first with: {first}"
        for engine, count in sorted(self.missed.items()):
            yield f"{self.name}: {count} answers lack {engine}, which failed"


def engines_of(asking: Asking, named: str | None) -> tuple[list[str], list[str]]:
    """The engines to ask alone, and notes about those that are left out. Raises Failure if there are none."""
    if named is not None:
        names = list(dict.fromkeys(name.strip() for name in named.split(",") if name.strip()))
        if not names:
            raise typer.BadParameter("names no engine", param_hint="--engines")
        return names, []
    up, notes = [], []
    for entry in remote.engines(asking.url, asking.timeout):
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


def fetch_runs(queries: Sequence[Query], engines: Sequence[str | None], asking: Asking) -> list[Run]:
    """One run per engine (None: the whole gateway), with a progress bar. Raises Failure if nothing was answered."""
    runs = [Run(engine) for engine in engines]
    with progress_bar() as bar:
        task = bar.add_task("asking", total=len(queries) * len(runs))
        asyncio.run(_Interview(asking, runs, lambda: bar.advance(task)).conduct(queries))
    if not any(run.answers for run in runs):
        reason = next(reason for run in runs for reason in run.failures.values())
        raise Failure(f"none of {sum(len(run.failures) for run in runs)} requests was answered; the first: {reason}")
    return runs


def progress_bar() -> Any:
    """A bar on stderr that leaves nothing behind, and is not there at all if nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = asides()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class _Interview:
    """Every query put to every system, a few at a time."""

    def __init__(self, asking: Asking, runs: Sequence[Run], told: Callable[[], None]) -> None:
        self._asking = asking
        self._runs = runs
        self._told = told
        self._root = remote._root(asking.url)
        self._unheard = 0
        """Requests without any answer so far; below 0 once somebody has answered."""

    async def conduct(self, queries: Sequence[Query]) -> None:
        import httpx2

        jobs = ((query, run) for query in queries for run in self._runs)
        # trust_env: a proxy of the environment has no business between a person and their gateway.
        async with httpx2.AsyncClient(trust_env=False, timeout=None) as client, asyncio.TaskGroup() as group:
            for _ in range(self._asking.concurrency):
                group.create_task(self._work(client, jobs))

    async def _work(self, client: "httpx2.AsyncClient", jobs: Iterator[tuple[Query, Run]]) -> None:
        for query, run in jobs:
            if self._unheard >= GIVE_UP:
                return
            params = params_for(query, run.engine, self._asking)
            answer = await self._exchange(client, {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params})
            if isinstance(answer, str):
                run.failures[query.qid] = answer
            else:
                run.answers[query.qid] = read_hits(answer, run.engine)
                for engine in _degraded(answer):
                    run.missed[engine] = run.missed.get(engine, 0) + 1
            self._told()

    async def _exchange(self, client: "httpx2.AsyncClient", message: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """The `result`, or why there is none."""
        import httpx2

        seconds = self._asking.timeout + remote.GRACE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                response = await client.post(f"{self._root}/rcp/retrieve", json=message)
            answer = remote._object(response, self._root)
        except TimeoutError:
            return self._silence(f"no answer within {self._asking.timeout:g} seconds")
        except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
            return self._silence(f"no answer from {self._root}: {one_line(fault) or type(fault).__name__}")
        except Failure as fault:
            return self._silence(str(fault))
        self._unheard = -GIVE_UP * (1 << 40)
        error, result = answer.get("error"), answer.get("result")
        if isinstance(error, dict):
            return one_line(remote._told(error), 300)
        if isinstance(result, dict) and isinstance(result.get("hits"), list):
            return result
        return f"{self._root} answers, but not as a gateway does"

    def _silence(self, reason: str) -> str:
        self._unheard += 1
        return reason


def params_for(query: Query, engine: str | None, asking: Asking) -> dict[str, Any]:
    """The params of one request.

    One engine alone is asked so that the fused list is its own, in its own order: plain RRF, a weight that counts, and
    nothing of what the gateway does to the fused list.
    """
    params = {**query.params, "query": query.text, "k": asking.k}
    params["_meta"] = {**(query.params.get("_meta") or {}), "deadlineMs": max(1, int(asking.timeout * 1000))}
    if engine is None:
        return params
    for name in ("minScore", "tokenBudget"):
        params.pop(name, None)
    fusion = query.params.get("fusion") or {}
    weights = fusion.get("weights")
    inner = {name: weights[name] for name in ("dense", "sparse") if name in weights} if type(weights) is dict else {}
    params["fusion"] = {**fusion, "method": "rrf", "weights": {**inner, engine: 1.0}}
    wishes = {key: value for key, value in (query.params.get("x-gateway") or {}).items() if key != "mmr"}
    params["x-gateway"] = {**wishes, "engines": [engine], "confidenceWeight": 0}
    return params


def read_hits(result: Mapping[str, Any], engine: str | None) -> list[Hit]:
    """The hits of a result; with an engine, as that engine ranked and scored them (`meta.engines`)."""
    sound = [hit for hit in result["hits"] if isinstance(hit, dict) and _is_id(hit.get("id"))]
    if engine is None:
        return [{"id": str(hit["id"]), "score": hit.get("score")} for hit in sound]
    marked = [(hit, _mark(hit, engine)) for hit in sound]
    if all(type(mark.get("rank")) is int for _, mark in marked):
        marked.sort(key=lambda pair: pair[1]["rank"])  # type: ignore[no-any-return]
    return [_as_sent(hit, mark) for hit, mark in marked]


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _mark(hit: Mapping[str, Any], engine: str) -> Mapping[str, Any]:
    """What the gateway says that this engine said of the hit."""
    meta = hit.get("meta")
    marks = meta.get("engines") if isinstance(meta, dict) else None
    found = (mark for mark in (marks if isinstance(marks, list) else []) if isinstance(mark, dict))
    return next((mark for mark in found if mark.get("id") == engine), {})


def _as_sent(hit: Mapping[str, Any], mark: Mapping[str, Any]) -> Hit:
    score = mark.get("score")
    sent: Hit = {"id": str(hit["id"]), "score": score if type(score) in (int, float) else 0.0}
    if "confidence" in mark:
        sent["confidence"] = mark["confidence"]
    return sent


def _degraded(result: Mapping[str, Any]) -> list[str]:
    meta = result.get("_meta")
    dropped = meta.get("degraded") if isinstance(meta, dict) else None
    return [name for name in dropped if isinstance(name, str)] if isinstance(dropped, list) else []
