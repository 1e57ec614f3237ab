"""One id, two documents: engines that number unrelated corpora alike, seen by their clearly different texts.

Decides only whether two texts look unrelated, cheaply and on the safe side. It refuses to mend it; `idNamespace` does.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import combinations
from typing import Final

from app.fusion.copies import Copy

FIRST_WORDS: Final = 60
"""Words of each text that are compared."""
LEAST_OVERLAP: Final = 0.1
"""Two texts that share less of their words (Jaccard) are clearly different."""


def clashing(copies: Sequence[Copy], known: Container[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Pairs of engines (in id order, none with a namespace, none `known`) whose texts for one id are unrelated."""
    texts = [
        (source.engine, text)
        for source, _, hit in copies
        if source.namespace is None and type(text := hit.get("text")) is str and text
    ]
    if len({text for _, text in texts}) < 2:
        return
    for (engine, text), (other, another) in combinations(texts, 2):
        if text != another and (engine, other) not in known and unrelated(text, another):
            yield engine, other


def unrelated(text: str, other: str) -> bool:
    """Whether neither text contains the other and they share next to no words."""
    if text in other or other in text:
        return False
    words, others = _words(text), _words(other)
    shared = len(words & others)
    return shared < LEAST_OVERLAP * (len(words) + len(others) - shared)


def _words(text: str) -> set[str]:
    return set(text.casefold().split(None, FIRST_WORDS)[:FIRST_WORDS])
