"""The score of engine selection against a literal reference, and the bounds of a sketch."""

from collections import Counter
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fusion.term_sketch import (
    MAX_MASS,
    RECENT_DOCUMENTS,
    TERMS_EACH,
    TermSketch,
    bucket_of,
    query_terms,
    term_parts,
    terms_of,
)

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def sketch_of(documents: list[str]) -> TermSketch:
    sketch = TermSketch()
    for number, text in enumerate(documents):
        sketch.add(f"{number}", [text])
    return sketch


def reference(engines: list[list[str]], query: list[str]) -> list[float]:
    """The formula of the specification, written as it reads there; documents are counted without a bound."""
    f = [Counter(word for document in documents for word in set(document.split())) for documents in engines]
    m = [sum(counts.values()) for counts in f]
    scores = []
    for e in range(len(engines)):
        score = 0.0
        for t in query:
            p = (sum(counts[t] for counts in f) + 0.5) / (sum(m) + 4096)
            if f[e][t]:
                score += log(1 + 0.9 / 0.1 * f[e][t] / (m[e] * p))
        scores.append(score)
    return scores


documents = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=5)


@given(
    st.lists(documents, min_size=2, max_size=6), st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True)
)
def test_the_score_is_that_of_the_formula(engines: list[list[str]], query: list[str]) -> None:
    rows = term_parts([sketch_of(documents) for documents in engines], [bucket_of(term) for term in query])
    scores = [sum(row[e] for row in rows if row) for e in range(len(engines))]
    assert scores == pytest.approx(reference(engines, query))


def test_a_document_counts_once_while_it_is_recent() -> None:
    sketch = TermSketch()
    assert sketch.add("a", ["alpha beta"])
    assert not sketch.add("a", ["gamma"])
    assert sketch.mass == 2
    for number in range(RECENT_DOCUMENTS):
        sketch.add(f"{number}", ["delta"])
    assert sketch.add("a", ["gamma"])


def test_a_sketch_stays_small_whatever_is_returned() -> None:
    sketch = TermSketch()
    for number in range(2000):
        sketch.add(f"{number}", [" ".join(f"w{letters}" for letters in words(number))])
    assert sketch.mass <= MAX_MASS
    assert len(sketch.counts) <= 8192
    assert sketch.mass == pytest.approx(sum(sketch.counts.values()))


def words(number: int) -> list[str]:
    """200 different words for one document."""
    digits = "abcdefghij"
    return ["".join(digits[int(digit)] for digit in f"{number * 200 + place}") for place in range(200)]


def test_only_the_first_terms_of_a_document_count() -> None:
    assert sketch_of([" ".join(words(1))]).mass <= TERMS_EACH


def test_old_terms_fade() -> None:
    sketch = sketch_of(["alpha"])
    for number in range(1000):
        sketch.add(f"new {number}", [" ".join(words(number))])
    assert bucket_of("alpha") not in sketch.counts or sketch.counts[bucket_of("alpha")] < 1


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Der STRASSE, a x1 Straße", ["der", "strasse", "strasse"]),
        ("東京の天気", ["東京", "京の", "の天", "天気"]),
        ("снег и лёд", ["снег", "лёд"]),
        ("snake_case CamelCase", ["snake", "case", "camelcase"]),
        ("", []),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    assert list(terms_of(text)) == terms


def test_half_a_surrogate_pair_is_a_term_like_any_other() -> None:
    assert len(query_terms("bad\ud800title word")) >= 1


def test_an_unknown_term_adds_nothing() -> None:
    assert term_parts([sketch_of(["alpha"]), sketch_of(["beta"])], [bucket_of("omega")]) == [[]]
