"""One id, two documents."""

from typing import Any

import pytest

from app.fusion.collision import clashing, unrelated
from app.fusion.ranked import RankedList

FOX = "the quick brown fox jumps over a lazy dog"
MONEY = "quarterly revenue grew by seven percent worldwide"


def _clashes(*texts: Any, namespaces: tuple[str | None, ...] = (None,) * 4) -> list[tuple[str, str]]:
    copies = [
        (RankedList(engine, [], namespace=namespace), 1, {"id": 7, "text": text})
        for engine, text, namespace in zip("abcd", texts, namespaces, strict=False)
    ]
    return list(clashing(copies, ()))


def test_equal_texts_never_clash() -> None:
    """The same document from several engines."""
    assert _clashes(FOX, FOX, FOX) == []


def test_every_pair_of_unrelated_texts_clashes() -> None:
    """Each engine against each that holds something else."""
    assert _clashes(FOX, MONEY, FOX) == [("a", "b"), ("b", "c")]


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
