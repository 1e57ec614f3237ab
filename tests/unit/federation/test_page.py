"""What of an order one answer serves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.federation.result_set import (
    DiversityOptions,
    Page,
    diversity_for,
    excluding,
    page_of,
    seen_of,
    session_keys_of,
)
from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse
from app.protocol.retrieve_params import RetrieveOptions
from tests.support.fake_engine import Json, hit, hits

OPTIONS = RetrieveOptions()


def fused(sent: list[Json], identity: Any = "id") -> FusedList:
    """The fusion of one list."""
    return fuse([RankedList("e", sent, fetch_k=20)], FusionConfig(confidence_weight=0, identity=identity))


def options(**params: Any) -> RetrieveOptions:
    return RetrieveOptions.model_validate(params)


def ids(page: Page) -> list[Any]:
    return [found["id"] for found in page.hits]


TEN = fused(hits(*range(10)))


@pytest.mark.parametrize(
    ("k", "start", "expected", "end", "short", "more"),
    [
        (3, 0, [0, 1, 2], 3, False, True),
        (3, 7, [7, 8, 9], 10, False, False),
        (4, 7, [7, 8, 9], 10, True, False),
        (3, 10, [], 10, True, False),
    ],
)
def test_a_slice(k: int, start: int, expected: list[int], end: int, short: bool, more: bool) -> None:
    """So many from a place on; it is known whether the order ended, and whether it goes on."""
    page = page_of(TEN, OPTIONS, k, start)
    assert ids(page) == expected
    assert list(page.keys) == [str(place) for place in expected]
    assert (page.end, page.short, page.more) == (end, short, more)


@pytest.mark.parametrize("seen", [{"0", "2"}, {"7", "8", "9"}, set(), set("0123456789")])
def test_what_was_seen_is_passed_over(seen: set[str]) -> None:
    """Seen documents are left out, and the place goes on behind them; nothing is more if all that is left was seen."""
    start, found = 0, []
    while True:
        page = page_of(TEN, OPTIONS, 3, start, seen)
        found += ids(page)
        if not page.more:
            break
        start = page.end
    assert found == [number for number in range(10) if str(number) not in seen]


def test_a_floor_is_the_end_of_the_order() -> None:
    """Below `minScore` nothing is served, and it is known that nothing can follow."""
    floor = TEN.scores()[4]
    first = page_of(TEN, options(minScore=floor), 3)
    rest = page_of(TEN, options(minScore=floor), 3, first.end)
    assert ids(first) + ids(rest) == [0, 1, 2, 3, 4]
    assert (first.more, rest.more, rest.short, rest.floored) == (True, False, True, True)
    assert not page_of(TEN, options(minScore=0), 3).floored


def test_a_budget_cuts_and_the_place_is_behind_the_last() -> None:
    """What did not fit is where the next portion begins; a portion that was cut is not short."""
    order = fused([hit(number, 1 - number / 9, text="abcd" * 3) for number in range(5)])
    page = page_of(order, options(tokenBudget=7), 4)
    assert (ids(page), page.tokens, page.end) == ([0, 1], 6, 2)
    assert (page.short, page.more) == (False, True)
    assert ids(page_of(order, options(tokenBudget=7), 4, page.end)) == [2, 3]


def test_text_is_left_out_of_the_hits_alone() -> None:
    """`includeText: false` leaves text out after it was counted; what the engine sent has it still."""
    sent = [hit(number, 1, text="abcd") for number in range(3)]
    page = page_of(fused(sent), options(includeText=False, tokenBudget=2), 3)
    assert [found.keys() & {"text"} for found in page.hits] == [set(), set()]
    assert page.tokens == 2
    assert all("text" in found for found in sent)


WORDS = st.lists(st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join), max_size=40)


@given(WORDS, st.floats(0, 1), st.lists(st.integers(1, 9), min_size=1), st.integers(1, 12), st.integers(1, 60))
def test_varied_portions_are_slices_of_one_order(
    texts: list[str], lambda_: float, sizes: list[int], k: int, pool: int
) -> None:
    """However it is cut, a diversified order is one order: every document once, behind the pool as it was fused."""
    order = fused([hit(number, 100 - number, text=text) for number, text in enumerate(texts)])
    diversity = DiversityOptions(lambda_, pool)
    whole = ids(page_of(order, OPTIONS, len(texts) + 1, diversity=diversity))
    assert sorted(whole) == list(range(len(texts)))
    assert whole[pool:] == list(range(len(texts)))[pool:]
    start, found = 0, list[Any]()
    for number in range(len(texts)):
        page = page_of(order, OPTIONS, sizes[number % len(sizes)], start, diversity=diversity)
        found += ids(page)
        start = page.end
    assert found == whole


@given(WORDS, st.floats(0, 1), st.sets(st.integers(0, 39).map(str)))
def test_varied_and_seen(texts: list[str], lambda_: float, seen: set[str]) -> None:
    """Seen documents are passed over in a diversified order, too, and all others keep their places."""
    order = fused([hit(number, 100 - number, text=text) for number, text in enumerate(texts)])
    diversity = DiversityOptions(lambda_, 50)
    whole = ids(page_of(order, OPTIONS, len(texts) + 1, diversity=diversity))
    start, found = 0, list[Any]()
    for _ in texts:
        page = page_of(order, OPTIONS, 3, start, seen, diversity)
        found += ids(page)
        start = page.end
    assert found == [number for number in whole if str(number) not in seen]


def test_the_wish_for_variety() -> None:
    """λ is 0.5 where nobody says; the pool grows with `k`, within bounds."""
    assert diversity_for(None, 10) == DiversityOptions(0.5, 50)
    assert diversity_for(0.0, 20) == DiversityOptions(0.0, 80)
    assert diversity_for(1.0, 1000) == DiversityOptions(1.0, 100)


def test_fresh_leaves_out_what_any_has() -> None:
    """The same order without those; the very same if there is nothing to leave out."""
    assert excluding(TEN, {"1"}, {"3", "5"}).keys() == ["0", "2", "4", "6", "7", "8", "9"]
    assert excluding(TEN, {"x"}, frozenset()) is TEN


def test_seen_by_id_under_another_identity() -> None:
    """Where keys are no ids, a document was seen if its key was or the id it would be served with."""
    sent = [hit(number, 1, citation={"uri": f"https://x/{number}"}) for number in range(4)]
    order = fused(sent, "uri")
    assert seen_of(order, {"1", "uri:https://x/2"}, "uri") == {"uri:https://x/1", "uri:https://x/2"}
    seen = {"1"}
    assert seen_of(TEN, seen, "id") is seen
    page = page_of(order, OPTIONS, 1)
    assert list(session_keys_of(page, "uri")) == ["uri:https://x/0", "0"]
    assert session_keys_of(page, "id") == ["uri:https://x/0"]
