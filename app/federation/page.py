"""What of a fused order one answer serves: from where, how much, without what, how varied. Pure.

Scores belong to our scale here, so `minScore`, `tokenBudget` and a diversified order are honoured here and nowhere else
(decision 4). It refuses to know engines, and what earlier answers have left behind beyond a place in the order.
"""

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from app.federation.outcome import Hit
from app.fusion.identity import Identity
from app.fusion.injection_screen import InjectionScreen
from app.fusion.merge import FusedList
from app.fusion.mmr import diversify
from app.protocol.retrieve_params import RetrieveOptions

BYTES_PER_TOKEN: Final = 4
"""The documented estimate of `usage.tokens`: UTF-8 bytes of a hit's text, divided by this, rounded up."""

DEFAULT_LAMBDA: Final = 0.5
"""`mmr.lambda` where the caller does not say."""

MAX_POOL: Final = 100
"""Largest number of documents that are compared with each other for variety."""


class DiversityOptions(NamedTuple):
    """The wish for variety: `lambda_` in [0,1], and how many of the best documents are put into a new order."""

    lambda_: float
    pool: int


class Page(NamedTuple):
    """What one answer serves."""

    hits: list[Hit]
    keys: Sequence[str]
    """The identity keys of the hits."""
    end: int
    """The place in the order after the last hit."""
    short: bool
    """Whether the order ended before `k` or the token budget did."""
    more: bool
    """Whether the order goes on."""
    floored: bool
    """Whether documents are left out for `minScore`; nothing can follow the last then."""
    tokens: int | None


NOTHING: Final = Page([], (), 0, True, False, False, None)
"""What is served where nobody was asked."""


def spread_over(lambda_: float | None, k: int) -> DiversityOptions:
    """The wish for variety of a request for `k` hits; its pages keep to it."""
    return DiversityOptions(DEFAULT_LAMBDA if lambda_ is None else lambda_, min(MAX_POOL, max(50, 4 * k)))


def page_of(
    fusion: FusedList,
    options: RetrieveOptions,
    k: int,
    start: int = 0,
    seen: Container[str] | None = None,
    spread: DiversityOptions | None = None,
    screen: InjectionScreen | None = None,
) -> Page:
    """At most `k` hits of the order from `start` on, none that was `seen`, none below `minScore`, within the budget.

    `screen` marks what looks askance in them.
    """
    length = len(fusion)
    limit = length if options.min_score is None else _above(fusion, options.min_score)
    if seen is None and spread is None:
        stop = min(start + k, limit)
        hits, keys = fusion.hits(start, stop), fusion.keys(start, stop)
        places: Sequence[int] = range(start, stop)
        last = limit
    else:
        all_keys = fusion.keys()
        passed_over = 0 if seen is None else sum(key in seen for key in all_keys)
        order = _varied(fusion, spread, limit, start + k + passed_over)
        wanted = [place for place in range(start, limit) if seen is None or all_keys[order[place]] not in seen]
        places, last = wanted[:k], wanted[-1] + 1 if wanted else start
        chosen = fusion.pick([order[place] for place in places])
        hits, keys = chosen.hits(), chosen.keys()
    if screen is not None:
        screen.inspect(hits)
    tokens = None
    fitting = len(hits)
    if options.token_budget is not None:
        hits, tokens = pack(hits, options.token_budget)
        keys = keys[: len(hits)]
    if options.include_text is False:
        for hit in hits:  # fresh objects: what the engines sent stays as it is
            hit.pop("text", None)
    end = places[len(hits) - 1] + 1 if hits else start
    return Page(hits, keys, end, fitting == len(hits) < k, end < last, limit < length, tokens)


def fresh(fusion: FusedList, *left_out: Container[str]) -> FusedList:
    """The same order without these documents."""
    keys = fusion.keys()
    wanted = [place for place, key in enumerate(keys) if not any(key in served for served in left_out)]
    return fusion if len(wanted) == len(keys) else fusion.pick(wanted)


def _above(fusion: FusedList, floor: float) -> int:
    """How many of the top documents are not below `floor`."""
    scores = fusion.scores()
    return next((place for place, score in enumerate(scores) if score < floor), len(scores))


def _varied(fusion: FusedList, spread: DiversityOptions | None, limit: int, needed: int) -> Sequence[int]:
    """Indexes into `fusion` in the order of serving, right as far as `needed`.

    The pool depends on the wish alone, and who comes first does not depend on how many are chosen, so that pages made
    one by one are slices of one order.
    """
    if spread is None:
        return range(limit)
    pool = min(spread.pool, limit)
    chosen = diversify(fusion.pick(range(pool)), min(pool, max(needed, -(-pool // 4))), spread.lambda_)
    return [*chosen, *sorted(set(range(pool)).difference(chosen)), *range(pool, limit)]


def pack(hits: list[Hit], budget: int) -> tuple[list[Hit], int]:
    """Whole hits from the top until the next would not fit, at least one; and the tokens they are estimated to take."""
    total = 0
    for index, hit in enumerate(hits):
        tokens = estimate_tokens(hit)
        if index and total + tokens > budget:
            return hits[:index], total
        total += tokens
    return hits, total


def estimate_tokens(hit: Hit) -> int:
    """Tokens of one hit's text, estimated from its UTF-8 length; 0 without text."""
    text = hit.get("text")
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN) if type(text) is str else 0


def seen_of(fusion: FusedList, seen: Container[str], identity: Identity) -> Container[str]:
    """Which of these documents were `seen`, by key; where keys are no ids, also by the id they would be served with."""
    if identity == "id":
        return seen
    pairs = zip(fusion.keys(), fusion.hits(), strict=True)
    return frozenset(key for key, hit in pairs if key in seen or f"{hit['id']}" in seen)


def remembered_of(page: Page, identity: Identity) -> Sequence[str]:
    """What a session remembers of these hits: their keys, and their ids where keys are something else."""
    return page.keys if identity == "id" else [*page.keys, *(f"{hit['id']}" for hit in page.hits)]
