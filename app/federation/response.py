"""Builds the `retrieve` result: hits, usage, and the report of every engine, asked or not (RCP §7.7)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from app.federation.explain import describe_response
from app.federation.hit_validation import sanitized
from app.federation.membership import Members
from app.federation.outcome import MERGED_FROM, Note, Outcome, degraded, merged, notes, report
from app.federation.planner import EngineCall, Plan, Selection
from app.federation.result_set import Page, ResultSet
from app.federation.snapshot_tokens import token_of, versions_in
from app.protocol.retrieve_params import RetrieveParams

STATE_DEGRADED: Final = (
    "state: the shared state is unavailable; nextCursor works only at this gateway, and the session contains only what "
    "this gateway returned"
)
"""Note of a response that continues another or can be continued."""

ReportForm = Literal["full", "brief", "none"]
"""Which engines the report lists."""

NO_TIMES: Mapping[str, float] = MappingProxyType({})


class RetrieveResponse(NamedTuple):
    """Everything that one result is built from."""

    plan: Plan
    outcomes: Sequence[Outcome]
    """Of the engines that were asked, by engine id."""
    result_set: ResultSet | None
    """What the page was cut from; None if no engine was asked."""
    page: Page

    @property
    def follows(self) -> bool:
        """Whether there may be a next page."""
        result_set, page = self.result_set, self.page
        if result_set is None or not page.hits:
            return False
        return page.more or (bool(result_set.open) and not page.floored)


def build_result(
    params: RetrieveParams,
    members: Members,
    answer: RetrieveResponse,
    took: float,
    spent: Mapping[str, float] = NO_TIMES,
) -> dict[str, Any]:
    """The `retrieve` result (RCP §7.7): hits, usage, and the report in `_meta`.

    `took` is in seconds, as are the values of `spent` (by step).
    """
    plan, outcomes, result_set, page = answer
    usage: dict[str, Any] = {
        "candidates": sum([outcome.candidates for outcome in outcomes]),
        "reranked": sum([outcome.reranked for outcome in outcomes]) + _reranked(outcomes, result_set),
        "latencyMs": round(took * 1000, 2),
    }
    if page.tokens is not None:
        usage["tokens"] = page.tokens
    # Sanitized here and not after fusion: only hits that are returned need to be valid.
    lines = _notes(plan, outcomes, result_set) + sanitized(page.hits)
    if lines:
        usage["notes"] = lines
    gateway: dict[str, Any] = {"id": members.identity, "engines": _report(plan, outcomes)}
    if result_set is not None:
        gateway["fusion"] = _fusion_report(result_set)
    if plan.selection is not None:
        gateway["select"] = _selection_report(plan.selection)
    if params.gateway.explain:
        gateway["explain"] = describe_response(plan, result_set, page, spent)
    meta: dict[str, Any] = {"x-gateway": gateway}
    # A page of a saved result set has no outcomes, but is as incomplete as its first page.
    dropped = degraded(outcomes) if result_set is None else result_set.degraded
    if dropped:
        meta["degraded"] = dropped
    result: dict[str, Any] = {"hits": page.hits, "usage": usage, "_meta": meta}
    if result_set is not None and result_set.versions:
        result["indexVersion"] = _index_version(params, result_set.versions)
    rewritten = {outcome.rewritten_query for outcome in outcomes if outcome.rewritten_query is not None}
    # Different rewrites of several engines cannot be stated as one.
    if len(rewritten) == 1:
        result["rewrittenQuery"] = rewritten.pop()
    return result


def is_complete(response: RetrieveResponse) -> bool:
    """Whether the answer is what equal requests would get if everything worked: only such answers are cached."""
    result_set = response.result_set
    if result_set is None or result_set.degraded or result_set.screened:
        return False
    # Engines that were cut off, or never asked because the deadline was near, have another status.
    if any(outcome.status != "ok" for outcome in response.outcomes):
        return False
    verdict = result_set.verdict
    return verdict is None or verdict.engine is not None


def shortened(result: Mapping[str, Any], form: ReportForm) -> Mapping[str, Any]:
    """The result with the report that the caller asked for; `degraded` stays whole in every form.

    `brief` lists the engines that failed or gave a hit of the answer; `counts` says how many there are by status and
    by reason, of all engines.
    """
    meta = result.get("_meta")
    gateway = meta.get("x-gateway") if type(meta) is dict else None
    if form == "full" or type(gateway) is not dict or "engines" not in gateway:
        return result
    assert type(meta) is dict
    short = {key: value for key, value in gateway.items() if key != "engines"}
    if form == "brief":
        engines = gateway["engines"]
        shown = {*meta.get("degraded", ()), *_givers(result.get("hits"))}
        short["engines"] = [one for one in engines if one["id"] in shown or one["status"] == "failed"]
        short["counts"] = {
            "status": dict(sorted(Counter(one["status"] for one in engines).items())),
            "reason": dict(sorted(Counter(one["reason"] for one in engines if "reason" in one).items())),
        }
    return {**result, "_meta": {**meta, "x-gateway": short}}


def _givers(hits: Any) -> Iterator[str]:
    """The engines that gave these hits, as the gateway marks them."""
    for hit in hits if type(hits) is list else ():
        marks = (hit.get("meta") or {}).get("engines") if type(hit) is dict else None
        for mark in marks if type(marks) is list else ():
            if type(mark) is dict and type(mark.get("id")) is str:
                yield mark["id"]


def _reranked(outcomes: Sequence[Outcome], result_set: ResultSet | None) -> int:
    """Documents reranked for this response; none for a page of a saved result set."""
    return 0 if result_set is None or result_set.verdict is None or not outcomes else result_set.verdict.reranked


def note(result: dict[str, Any], line: str) -> None:
    """Add a line to the notes of a result."""
    result["usage"].setdefault("notes", []).append(line)


def _notes(plan: Plan, outcomes: Sequence[Outcome], result_set: ResultSet | None) -> list[str]:
    """In a fixed order: notes of the plan, of the engines by id, of fusion, of the reranker, of MMR."""
    lines = [*plan_notes(plan), *notes(outcomes)]
    if result_set is None:
        return lines
    lines += result_set.fusion.notes
    if result_set.screened:
        lines.append(
            f"screen: {result_set.screened} document(s) dropped because their text looks like instructions to a model"
        )
    if result_set.verdict is not None:
        lines += result_set.verdict.notes
    if result_set.diversity is not None:
        lines.append(
            f"mmr: the gateway diversified the top {result_set.diversity.pool} documents by text overlap "
            f"(lambda {result_set.diversity.lambda_:g}); scores are those of fusion and may not descend"
        )
    return lines


def plan_notes(plan: Plan) -> list[str]:
    """The notes of the plan; those about engines, such as `docs: asked without 'mmr': …`, are merged by kind."""
    if len(plan.notes) < MERGED_FROM:
        return list(plan.notes)
    engines = {call.engine.id for call in plan.engine_calls} | {outcome.engine for outcome in plan.skipped}
    lines = []
    for line in plan.notes:
        engine = line.partition(": ")[0]
        # A note that is not about one engine counts as an engine of its own, so that it is never merged.
        lines.append(Note(line, engine) if engine in engines else Note(line, line, line))
    return merged(lines)


def _report(plan: Plan, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every engine of the registry; for those that were asked also `k`, the weight, and options left out."""
    entries = report([*outcomes, *plan.skipped])
    engine_calls: dict[str, EngineCall] = {engine_call.engine.id: engine_call for engine_call in plan.engine_calls}
    for entry in entries:
        engine_call = engine_calls.get(entry["id"])
        if engine_call is not None:
            entry["k"] = engine_call.asked
            entry["weight"] = engine_call.weight
            if engine_call.without:
                entry["without"] = engine_call.without
    return entries


def _selection_report(selection: Selection) -> dict[str, Any]:
    """How many engines could have been asked, how many were, and why."""
    return {
        "candidates": len(selection.order),
        "asked": len(selection.asked),
        "explored": len(selection.explored),
        "audit": selection.audit,
        "n": selection.n,
    }


def _fusion_report(result_set: ResultSet) -> dict[str, Any]:
    """The fusion that was applied; convex may have been replaced by rrf."""
    options = result_set.options
    blend: dict[str, Any] = {
        "method": result_set.fusion.method,
        "rrfK": options.rrf_k,
        "confidenceWeight": options.confidence_weight,
        "identity": options.identity,
    }
    verdict = result_set.verdict
    if verdict is not None:
        blend["rerank"] = {
            "engine": verdict.engine,
            "topN": verdict.top_n,
            "reranked": verdict.reranked,
            "asked": verdict.asked,
        }
    if result_set.diversity is not None:
        blend["mmr"] = {"lambda": result_set.diversity.lambda_, "pool": result_set.diversity.pool}
    return blend


def _index_version(params: RetrieveParams, versions: Mapping[str, str]) -> str | None:
    """One token for the versions of all engines; if the request was pinned to an engine's own version, that one."""
    # An engine's own version is returned as such, so the caller can compare it.
    wanted = params.options.index_version
    if wanted is not None and versions_in(wanted) is None:
        return next(iter(versions.values()))
    return token_of(versions)
