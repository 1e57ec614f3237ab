"""Detection of id collisions: engines that use the same ids for unrelated documents.

A collision shows in clearly different texts under one id. The remedy is `idNamespace` in the registry. The cost of a
comparison does not depend on the length of the texts.
"""

from collections.abc import Sequence
from typing import Final

from app.fusion.copies import Copy, richest

FIRST_WORDS: Final = 60
"""Words of each text that are compared."""
FIRST_CHARACTERS: Final = 600
"""Characters that these words are taken from."""
EXCERPT: Final = 200
"""Characters of the shorter text that are searched for in the longer one."""
SEARCHED: Final = 20_000
"""Characters of the longer text that are searched for an excerpt."""
LEAST_OVERLAP: Final = 0.1
"""Two texts that share less of their words (Jaccard) are clearly different."""


def clashing(copies: Sequence[Copy]) -> list[tuple[str, str]]:
    """Pairs of engines whose texts for one id are unrelated: the engine of the richest copy and another, in id order.

    Linear in copies: each is compared with the richest one only. Engines with a namespace are left out.
    """
    plain = [copy for copy in copies if copy[0].namespace is None]
    if len(plain) < 2:
        return []
    kept, _, hit = richest(plain)
    text = hit.get("text")
    if type(text) is not str or not text:
        return []
    found = []
    words = None
    for source, _, other in plain:
        another = other.get("text")
        if type(another) is not str or not another or another == text:
            continue
        if words is None:
            words = _words(text)
        if _unrelated(text, words, another):
            pair = (source.engine, kept.engine) if source.engine < kept.engine else (kept.engine, source.engine)
            found.append(pair)
    return found


def unrelated(text: str, other: str) -> bool:
    """Whether neither text contains the other and they share next to no words."""
    longer, shorter = (text, other) if len(text) >= len(other) else (other, text)
    return _unrelated(longer, _words(longer), shorter)


def _unrelated(longer: str, words: set[str], shorter: str) -> bool:
    others = _words(shorter)
    shared = len(words & others)
    if shared >= LEAST_OVERLAP * (len(words) + len(others) - shared):
        return False
    # One engine may return a passage of the document that the other returns whole.
    return shorter[:EXCERPT] not in longer[:SEARCHED]


def _words(text: str) -> set[str]:
    # Cut first: casefold and split would otherwise process megabytes of a long text.
    return set(text[:FIRST_CHARACTERS].casefold().split(None, FIRST_WORDS)[:FIRST_WORDS])
