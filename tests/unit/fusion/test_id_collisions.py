"""One id, two documents."""

from typing import Any

import pytest

from app.fusion.id_collisions import FIRST_CHARACTERS, clashing, unrelated
from app.fusion.ranked_lists import RankedList

FOX = "the quick brown fox jumps over a lazy dog"
MONEY = "quarterly revenue grew by seven percent worldwide"


def _clashes(*texts: Any, namespaces: tuple[str | None, ...] = (None,) * 4) -> list[tuple[str, str]]:
    copies = [
        (RankedList(engine, [], namespace=namespace), 1, {"id": 7, "text": text})
        for engine, text, namespace in zip("abcd", texts, namespaces, strict=False)
    ]
    return clashing(copies)


def test_equal_texts_never_clash() -> None:
    """The same document from several engines."""
    assert _clashes(FOX, FOX, FOX) == []


def test_each_copy_is_compared_with_the_richest_one() -> None:
    """Whoever holds something else than the text that is served clashes with the engine that gave it."""
    assert _clashes(FOX, MONEY, FOX) == [("a", "b"), ("b", "c")]
    assert _clashes(MONEY, FOX, FOX, MONEY) == [("a", "b"), ("a", "c")]


class Counted(str):
    """A text that counts how many characters of it were folded."""

    folded = 0

    def __getitem__(self, part: Any) -> "Counted":
        return Counted(super().__getitem__(part))

    def casefold(self) -> str:
        Counted.folded += len(self)
        return super().casefold()


def test_the_work_is_linear_in_copies_and_bounded_in_text() -> None:
    """Of megabytes of text some hundred characters are folded, once for each copy, however many there are."""
    kept, other = Counted(f"{MONEY} " * 20_000), Counted(f"{FOX} " * 20_000)
    Counted.folded = 0
    assert unrelated(kept, other)
    assert Counted.folded == 2 * FIRST_CHARACTERS


def test_texts_with_an_early_excerpt_are_one_document() -> None:
    """The search for the shorter text in the longer one looks at its beginning only."""
    words = [f"w{number}" for number in range(500)]
    assert not unrelated(" ".join(words), " ".join(words[200:300]))


@pytest.mark.parametrize("absent", [None, "", 7])
def test_a_copy_without_text_clashes_with_nothing(absent: Any) -> None:
    """Nothing can be said about it."""
    assert _clashes(FOX, absent) == []


def test_an_engine_with_a_namespace_clashes_with_nothing() -> None:
    """Its ids are already its own."""
    assert _clashes(FOX, MONEY, namespaces=("docs", None)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [(FOX, FOX.upper()), (FOX, f"… {FOX} …"), (FOX, "a quick brown fox is jumping over dogs"), ("fox", FOX)],
)
def test_related_texts_are_no_collision(one: str, other: str) -> None:
    """Other case, an excerpt and another wording are one document."""
    assert not unrelated(one, other)
    assert not unrelated(other, one)
