"""Latent-semantic vectors over documents."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from app.demo import concepts
from app.demo.concepts import Concepts
from app.demo.demo_document import DemoDocument
from app.demo.filter_sql import Where
from app.demo.query_params import DemoQuery

SUBJECTS = {
    "json": "serialize decode encode object string json document parser",
    "path": "file directory path folder remove join absolute relative",
    "date": "date time zone day month year clock calendar",
    "thread": "thread lock wait pool worker queue task event",
}


def documents() -> list[DemoDocument]:
    made = []
    for module, words in SUBJECTS.items():
        vocabulary = words.split()
        for n in range(12):
            text = " ".join(vocabulary[(n + step) % len(vocabulary)] for step in range(4))
            made.append(DemoDocument(f"{module}.{n:02}", module, text, {}, {"module": module, "kind": "function"}))
    return made


@pytest.fixture(scope="module")
def space() -> Iterator[Concepts]:
    """A small space of four subjects, as few dimensions as that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concepts, "DIMENSIONS", 4)
        small = Concepts(documents())
        yield small
        small.close()


def test_a_question_finds_its_subject(space: Concepts) -> None:
    """The nearest documents are those of the subject, those that share no word with the question included."""
    found = space.search(DemoQuery("month and year", k=12)).found
    assert {hit.document.meta["module"] for hit in found} == {"date"}
    assert any("month" not in hit.document.text and "year" not in hit.document.text for hit in found)


def test_scores_fall_and_confidences_with_them(space: Concepts) -> None:
    """Cosines above 0, confidences in [0, 1], both falling along the list, ties by id."""
    found = space.search(DemoQuery("file path", k=40)).found
    assert len(found) > 5
    for better, worse in pairwise(found):
        assert (better.score, worse.document.id) >= (worse.score, better.document.id)
        assert better.score >= worse.score > 0
        assert 1 >= better.confidence >= worse.confidence >= 0


def test_words_that_the_space_cannot_express_cost_confidence(space: Concepts) -> None:
    """The order stays, the confidence goes down with every unknown word."""
    sure, unsure = (
        space.search(DemoQuery(question, k=3)).found for question in ("file path", "file path zymurgy quux")
    )
    assert [hit.document.id for hit in sure] == [hit.document.id for hit in unsure]
    assert unsure[0].confidence == pytest.approx(sure[0].confidence / 2, abs=1e-5)


@pytest.mark.parametrize("question", ["", "zymurgy", "the of and", "\0 ?"])
def test_a_question_without_a_known_word_has_no_answer(space: Concepts, question: str) -> None:
    """Nothing found is an empty answer and no fault."""
    assert space.search(DemoQuery(question, k=10)).found == []


def test_a_condition_and_a_least_score_hold_for_every_hit(space: Concepts) -> None:
    """Filters and `minScore` take documents away before the k best are taken."""
    result = space.search(DemoQuery("file thread", where=Where("module = ?", ("thread",))))
    assert {hit.document.meta["module"] for hit in result.found} == {"thread"}
    least = result.found[2].score
    assert all(hit.score >= least for hit in space.search(DemoQuery("file thread", k=50, min_score=least)).found)


def test_two_spaces_of_the_same_documents_agree(space: Concepts) -> None:
    """The vectors are fitted deterministically: hits, scores and confidences are the same."""
    again = Concepts(documents())
    assert again.search(DemoQuery("lock file", k=20)) == space.search(DemoQuery("lock file", k=20))
    assert again.noise == space.noise
    assert repr(again).startswith("Concepts(48 documents, ")
    again.close()
