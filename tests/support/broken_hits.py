"""Breaks of what `retrieve` returns, of its options and of filters (RCP §7.7, §8)."""

import itertools
import random
from collections.abc import Callable

import rcp

from tests.support.breakable_server import BreakableServer
from tests.support.breaking import Json, caught_by, in_result, without


def strings_only(before: Callable[[Json], Json], params: Json) -> Json:
    """A text-only server that takes no blocks, as it may (RCP §4.8)."""
    if not isinstance(params.get("query"), str):
        raise rcp.RcpError(-32602, "a string, please", {"field": "query"})
    return before(params)


@caught_by("retrieve.shape")
def a_score_is_no_number(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: hits[0].update(score=float("nan")) if hits else None)


@caught_by("retrieve.shape")
def a_hit_has_no_id(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: hits[0].pop("id") if hits else None)


@caught_by("retrieve.shape")
def a_unit_of_its_own(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(unit="stanza") for hit in hits])


@caught_by("retrieve.unique")
def a_hit_comes_twice(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: hits[-1].update(id=hits[0]["id"]) if hits else None)


@caught_by("retrieve.scores")
def scores_ascend(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: hits.reverse())


@caught_by("retrieve.k")
def k_does_not_matter(server: BreakableServer) -> None:
    without(server, "k")


@caught_by("retrieve.k-default")
def everything_by_default(server: BreakableServer) -> None:
    server.replace("retrieve", lambda before, params: before({"k": 20, **params}))


@caught_by("retrieve.k-clamped")
def too_large_a_k_is_refused(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if params.get("k", 10) > 20:
            raise rcp.RcpError(-32602, "too many", {"field": "k"})
        return before(params)

    server.replace("retrieve", changed)


@caught_by("retrieve.min-score")
def min_score_does_not_matter(server: BreakableServer) -> None:
    without(server, "minScore")


@caught_by("retrieve.min-score")
def min_score_takes_too_much(server: BreakableServer) -> None:
    server.replace("retrieve", lambda before, params: before({**params, "minScore": params.get("minScore", -9) + 0.2}))


@caught_by("retrieve.query-content")
def blocks_rank_an_empty_query(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        result = before(params)
        if not isinstance(params.get("query"), str):
            result["hits"].reverse()
        return result

    server.replace("retrieve", changed)


@caught_by("retrieve.query-content")
def blocks_are_refused_though_images_are_offered(server: BreakableServer) -> None:
    server.offers["retrieve"]["modalities"] = ["text", "image"]
    server.replace("retrieve", strings_only)


@caught_by("retrieve.query-content")
def blocks_end_in_an_internal_error(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if not isinstance(params.get("query"), str):
            raise rcp.RcpError(-32603, "'dict' object has no attribute 'lower'")
        return before(params)

    server.replace("retrieve", changed)


@caught_by("retrieve.confidence")
def more_than_sure(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(confidence=1.7) for hit in hits])


@caught_by("retrieve.confidence")
def promised_confidences_are_missing(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.pop("confidence") for hit in hits])


@caught_by("retrieve.score-floor")
def below_the_floor(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(score=hit["score"] - 9) for hit in hits])


@caught_by("retrieve.trust")
def more_than_trusted(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(trust={"level": "absolute"}) for hit in hits])


@caught_by("retrieve.include-text")
def text_always_comes(server: BreakableServer) -> None:
    without(server, "includeText")


@caught_by("retrieve.include-vectors")
def vectors_never_come(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.pop("vector", None) for hit in hits])


@caught_by("retrieve.shape")
def scores_are_words(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(scores={"dense": "high"}) for hit in hits])


@caught_by("options.units")
def another_unit_than_asked(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(unit="chunk") for hit in hits])


@caught_by("retrieve.include-vectors")
def vectors_always_come(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.update(vector=[1.0, 0.0, 0.0, 0.0]) for hit in hits])


@caught_by("retrieve.deterministic")
def chance_in_the_scores(server: BreakableServer) -> None:
    chance = random.Random(1)
    server.change_hits(lambda hits, _: [hit.update(score=hit["score"] + chance.random() / 100) for hit in hits])


@caught_by("citations.shape")
def promised_citations_are_missing(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit.pop("citation") for hit in hits])


@caught_by("citations.shape")
def a_page_is_a_word(server: BreakableServer) -> None:
    server.change_hits(lambda hits, _: [hit["citation"].update(page="one") for hit in hits])


@caught_by("options.modes")
def an_advertised_mode_is_refused(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if params.get("mode") == "hybrid":
            raise rcp.RcpError(-32005, "no", {"option": "mode"})
        return before(params)

    server.replace("retrieve", changed)


@caught_by("options.unknown-mode")
def any_mode_will_do(server: BreakableServer) -> None:
    without(server, "mode")


@caught_by("options.token-budget")
def the_budget_is_overdrawn(server: BreakableServer) -> None:
    without(server, "tokenBudget")


@caught_by("options.seed")
def seeds_are_refused(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if "seed" in params:
            raise rcp.RcpError(-32005, "no", {"option": "seed"})
        return before(params)

    server.replace("retrieve", changed)


@caught_by("options.snapshots")
def another_snapshot_is_served(server: BreakableServer) -> None:
    versions = map("v{}".format, itertools.count())
    without(server, "indexVersion")
    in_result(server, "retrieve", lambda result, _: result.update(indexVersion=next(versions)))


@caught_by("options.no-such-snapshot")
def any_snapshot_is_served(server: BreakableServer) -> None:
    without(server, "indexVersion")


@caught_by("options.unknown-fields")
def unknown_params_are_refused(server: BreakableServer) -> None:
    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        if "noSuchOption" in params:
            raise rcp.RcpError(-32602, "no", {"field": "noSuchOption"})
        return before(params)

    server.replace("retrieve", changed)


@caught_by("options.null")
def null_is_a_value(server: BreakableServer) -> None:
    server.handle = server.model.handle  # type: ignore[method-assign]


@caught_by("filter.eq")
def filters_do_not_matter(server: BreakableServer) -> None:
    without(server, "filter")


@caught_by("filter.eq")
def filters_keep_everything_back(server: BreakableServer) -> None:
    in_result(server, "retrieve", lambda result, params: "filter" in params and result["hits"].clear())


def rewritten_filter(server: BreakableServer, change: Callable[[Json], Json]) -> None:
    """Let `retrieve` understand another filter than it is given."""

    def changed(before: Callable[[Json], Json], params: Json) -> Json:
        return before({**params, "filter": change(params["filter"])} if "filter" in params else params)

    server.replace("retrieve", changed)


@caught_by("filter.not")
def not_is_ignored(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: tree.get("not", tree))


@caught_by("filter.and")
def and_looks_at_its_first(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: tree["and"][0] if tree.get("and") else tree)


@caught_by("filter.or")
def or_is_and(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {"and": tree["or"]} if "or" in tree else tree)


@caught_by("filter.in")
def in_is_refused(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {**tree, "op": "within"} if tree.get("op") == "in" else tree)


@caught_by("filter.ne")
def ne_is_eq(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {**tree, "op": "eq"} if tree.get("op") == "ne" else tree)


@caught_by("filter.fields")
def an_advertised_field_cannot_be_used(server: BreakableServer) -> None:
    server.offers["filter"] = {**server.offers["filter"], "fields": {"topic": "keyword", "size": "int"}}


@caught_by("filter.operators")
def an_advertised_operator_cannot_be_used(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {**tree, "op": "over"} if tree.get("op") == "gt" else tree)


@caught_by("filter.unknown-field")
def unknown_fields_match_nothing(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {"and": [KNOWN, {"not": KNOWN}]} if tree.get("field") not in NAMES else tree)


KNOWN = {"field": "topic", "op": "eq", "value": "a"}
NAMES = ("topic", "year", "open", None)


@caught_by("filter.unknown-operator")
def unknown_operators_are_eq(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {**tree, "op": "eq"} if tree.get("op") == "resembles" else tree)


@caught_by("filter.unoffered-operator")
def more_operators_than_advertised(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: KNOWN if tree.get("op") == "contains" else tree)


@caught_by("filter.empty")
def empty_is_everything(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {"not": {"and": [KNOWN, {"not": KNOWN}]}} if tree.get("or") == [] else tree)


@caught_by("filter.value-shape")
def a_value_is_a_list_of_one(server: BreakableServer) -> None:
    rewritten_filter(server, lambda tree: {**tree, "value": ["a"]} if tree.get("op") == "in" else tree)


@caught_by("filter.not-offered")
def unoffered_filters_are_ignored(server: BreakableServer) -> None:
    del server.offers["filter"]
    without(server, "filter")
