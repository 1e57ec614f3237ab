"""BM25 over documents: questions of any shape, scores and confidences that mean something."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.demo_document import DemoDocument
from app.demo.filter_sql import Where
from app.demo.fulltext import FullText, words_of
from app.demo.query_params import DemoQuery

TEXTS = {
    "list.sort": "Sort the list in ascending order.",
    "sorted": "Return a new sorted list from the items in an iterable.",
    "json.dumps": "Serialize an object to a JSON formatted string.",
    "json.loads": "Deserialize a string that holds a JSON document to an object.",
    "csv.reader": "Iterate over the lines of a CSV file.",
    "math.sqrt": "Return the square root of a number.",
    "os.remove": "Remove a file.",
    "shutil.rmtree": "Remove a directory tree.",
}
DOCUMENTS = [
    DemoDocument(name, name.replace(".", " "), text, {}, {"module": name.partition(".")[0]})
    for name, text in TEXTS.items()
]


@pytest.fixture(scope="module")
def index() -> Iterator[FullText]:
    """A small index."""
    full_text = FullText(DOCUMENTS)
    yield full_text
    full_text.close()


def ids(index: FullText, question: str, where: Where | None = None) -> list[str]:
    return [found.document.id for found in index.search(DemoQuery(question, where=where)).found]


def test_the_best_answer_comes_first(index: FullText) -> None:
    """A question in plain words finds what it is about; word forms do not matter."""
    assert ids(index, "how do I sort a list?")[0] == "list.sort"
    assert ids(index, "serializing objects as JSON")[0] == "json.dumps"
    assert ids(index, "removed directories")[0] == "shutil.rmtree"


def test_scores_fall_and_confidences_with_them(index: FullText) -> None:
    """Scores are at least 0, confidences in [0, 1], and both fall along the list."""
    found = index.search(DemoQuery("sort a list of JSON objects from a file")).found
    assert len(found) > 3
    for better, worse in pairwise(found):
        assert better.score >= worse.score >= 0
        assert 1 >= better.confidence >= worse.confidence >= 0


def test_words_that_nobody_knows_cost_confidence(index: FullText) -> None:
    """The same first hit is less sure when half of the question is foreign to the index."""
    sure, unsure = (
        index.search(DemoQuery(question, k=1)).found[0] for question in ("sort list", "sort list zymurgy quux")
    )
    assert sure.document == unsure.document
    assert unsure.confidence < 0.7 * sure.confidence


def test_k_bounds_the_hits_and_not_the_candidates(index: FullText) -> None:
    """`candidates` says how many documents could have been returned."""
    result = index.search(DemoQuery("return remove list", k=2))
    assert len(result.found) == 2
    assert result.candidates > 2


def test_scores_below_the_least_wanted_are_left_out(index: FullText) -> None:
    """`minScore` is in the engine's own scale and includes its bound."""
    scores = [found.score for found in index.search(DemoQuery("remove a file")).found]
    assert [found.score for found in index.search(DemoQuery("remove a file", min_score=scores[0])).found] == scores[:1]


def test_a_condition_holds_for_every_hit(index: FullText) -> None:
    """A filter removes documents before the k best are taken."""
    assert ids(index, "a JSON string", where=Where("module = ?", ("json",))) == ["json.dumps", "json.loads"]
    assert ids(index, "a JSON string", where=Where("module = ?", ("csv",))) == []


@pytest.mark.parametrize("question", ["", "   ", "?!*", "zymurgy", "\0"])
def test_a_question_without_a_known_word_has_no_answer(index: FullText, question: str) -> None:
    """Nothing found is an empty answer and no fault."""
    assert index.search(DemoQuery(question)).found == []


@pytest.mark.parametrize(
    "question",
    ['"', 'sort "list', "sort AND", "NEAR(sort list", "names:sort", "sort*", "-list", "^sort", "a'b;--", "OR OR"],
)
def test_the_search_language_is_only_text(index: FullText, question: str) -> None:
    """Operators, quotes and column names of FTS5 in a question are words like any other."""
    index.search(DemoQuery(question))


@given(st.text(max_size=200))
def test_any_text_can_be_asked(question: str) -> None:
    """No question whatever raises, and confidences stay within [0, 1]."""
    full_text = FullText(DOCUMENTS[:3])
    assert all(0 <= found.confidence <= 1 for found in full_text.search(DemoQuery(question)).found)
    full_text.close()


def test_common_words_are_dropped_unless_there_are_no_others() -> None:
    """`which` alone is a question; beside others it is not a word to look for."""
    assert words_of("How do I sort the List, the list?") == ["sort", "list"]
    assert words_of("which") == ["which"]
    assert len(words_of(" ".join(f"w{n}" for n in range(500)))) == 64


def test_ties_are_settled_by_order(index: FullText) -> None:
    """Equal documents come in the order in which they were given."""
    twins = FullText([DemoDocument(name, "twin", "same words", {}, {}) for name in "abc"])
    assert ids(twins, "same") == ["a", "b", "c"]
    assert repr(twins) == "FullText(3 documents)"
    twins.close()
