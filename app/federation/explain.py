"""A plan and a response as JSON for people: which engines are asked what, which are not and why, and the score of
each hit.


Pure. docs/reference/explain.md documents the format. Explaining adds no work to the request: it shows the same plan and
the same scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.federation.outcome import Hit, Outcome
from app.federation.planner import EngineCall, Plan, Selection
from app.federation.result_set import Page, ResultSet
from app.fusion.calibration import dump_calibration
from app.fusion.confidence import valid_confidence
from app.fusion.document_index import DocumentIndex
from app.fusion.explanation import Contributions, EngineClaim, Explanation, shares_of
from app.fusion.identity import body_text, public_id
from app.fusion.ranked_lists import FusionConfig, RankedList

MAX_TITLE = 200
MAX_SNIPPET = 240
"""Characters of the title and the text of a listed hit: enough to recognise it."""


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Everything that was decided before any engine was asked."""
    described: dict[str, Any] = {
        "k": plan.k,
        "window": plan.window,
        "fusion": describe_options(plan.fusion),
        "diversified": plan.varied,
        "cutByCaller": plan.cut_by_caller,
        "legs": [_engine_call(engine_call) for engine_call in plan.engine_calls],
        "left": [_left(outcome) for outcome in (*plan.skipped, *plan.lost)],
        "notes": list(plan.notes),
    }
    if plan.selection is not None:
        described["select"] = _describe_selection(plan.selection)
    if plan.union is not None:
        described["union"] = {"rerankers": [engine.id for engine in plan.union.rerankers], "topN": plan.union.top_n}
    return described


def _describe_selection(selection: Selection) -> dict[str, Any]:
    """The candidates in their order, with what each term of the query adds to their scores."""
    return {
        "n": selection.n,
        "audit": selection.audit,
        "explored": list(selection.explored),
        "order": [
            {
                "id": engine,
                "asked": engine in selection.asked,
                "score": round(selection.scores[engine], 4),
                "terms": {term: round(parts[engine], 4) for term, parts in selection.parts.items() if engine in parts},
            }
            for engine in selection.order
        ],
    }


def describe_response(
    plan: Plan, result_set: ResultSet | None, page: Page, spent: Mapping[str, float]
) -> dict[str, Any]:
    """The plan, the score parts of each returned hit, the lists that were fused, and the time spent."""
    described: dict[str, Any] = {"plan": describe_plan(plan), "hits": [], "lists": []}
    described["spentMs"] = {step: round(seconds * 1000, 3) for step, seconds in spent.items()}
    if result_set is not None:
        # Computed again from the saved lists, so that a normal response does not carry the parts.
        shares = shares_of(result_set.lists, result_set.options, page.keys)
        described["method"] = shares.method
        described["ceiling"] = shares.ceiling
        described["hits"] = [
            {"id": hit["id"], **describe_score(standing)}
            for hit, standing in zip(page.hits, shares.standings, strict=False)
        ]
        described["lists"] = [
            {**_list(ranked, result_set.options), "claim": _claim(shares.claims[ranked.engine])}
            for ranked in result_set.lists
        ]
    return described


def describe_fusion(shares: Contributions) -> dict[str, Any]:
    """The order of documents that were fused again."""
    return {
        "method": shares.method,
        "ceiling": shares.ceiling,
        "hits": [describe_score(standing) for standing in shares.standings],
    }


def describe_score(standing: Explanation) -> dict[str, Any]:
    """One document: its score and the parts of it, the largest first."""
    return {"key": standing.key, "sum": standing.total, "parts": [part._asdict() for part in standing.parts]}


def describe_options(options: FusionConfig) -> dict[str, Any]:
    """Fusion settings, named as in requests."""
    return {
        "method": options.method,
        "rrfK": options.rrf_k,
        "confidenceWeight": options.confidence_weight,
        "identity": options.identity,
        "silent": options.silent,
    }


def _engine_call(engine_call: EngineCall) -> dict[str, Any]:
    entry = engine_call.engine.entry
    described: dict[str, Any] = {
        "engine": engine_call.engine.id,
        "weight": engine_call.weight,
        "priority": entry.priority,
        "required": entry.required,
        "deadlineMs": round(engine_call.seconds * 1000),
        "k": engine_call.asked,
        "params": dict(engine_call.params),
    }
    if engine_call.pinned is not None:
        described["pinned"] = engine_call.pinned
    if engine_call.without:
        described["without"] = list(engine_call.without)
    return described


def _left(outcome: Outcome) -> dict[str, Any]:
    return {"engine": outcome.engine, "reason": outcome.kind, "detail": outcome.detail}


def _list(ranked: RankedList, options: FusionConfig) -> dict[str, Any]:
    """One engine's list without duplicates, as it can be fused again."""
    # The same index that fusion uses, so that ranks are those after removing duplicates.
    document_index = DocumentIndex([ranked], options.identity)
    ((source, hits, _),) = document_index.lists
    return {
        "engine": source.engine,
        "weight": source.weight,
        "priority": source.priority,
        "asked": source.fetch_k,
        "scoreFloor": source.score_floor,
        "confidence": source.confidence,
        "silent": source.silent,
        "calibration": dump_calibration(source.calibration),
        "hits": [_listed(key, hit, source.namespace) for key, hit in zip(document_index.keys, hits, strict=True)],
    }


def _claim(claim: EngineClaim) -> dict[str, Any]:
    """What an engine claimed, what is believed of it by what was learned, and on how much evidence."""
    return {
        "from": claim.source,
        "claimed": [round(chance, 4) for chance in claim.claimed],
        "believed": [round(chance, 4) for chance in claim.believed],
        "n": round(claim.evidence, 3),
        "trust": round(claim.trust, 4),
    }


def _listed(key: str, hit: Hit, namespace: str | None) -> dict[str, Any]:
    listed: dict[str, Any] = {"key": key, "id": public_id(hit, namespace), "score": hit["score"]}
    confidence = valid_confidence(hit.get("confidence"))
    if confidence is not None:
        listed["confidence"] = confidence
    title = title_of(hit)
    if title:
        listed["title"] = title
    text = body_text(hit)
    if text:
        listed["snippet"] = text[:MAX_SNIPPET]
    return listed


def title_of(hit: Hit) -> str:
    """The title of a hit, if it has one: of its citation, else its own, else of its meta."""
    places: Sequence[Any] = (hit.get("citation"), hit, hit.get("meta"))
    for place in places:
        title = place.get("title") if type(place) is dict else None
        if type(title) is str and title.strip():
            return title[:MAX_TITLE]
    return ""
