"""The documents of several ranked lists, numbered in order of appearance, with their rank in each list.

Duplicates inside a list are removed first: a document keeps its best rank, and later ranks close up.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, final

from app.fusion.copies import Copy
from app.fusion.identity import Identity, identify
from app.fusion.ranked_lists import RankedList

DocumentRanks = tuple[RankedList, list[dict[str, Any]], list[int]]
"""A ranked list without inner duplicates: its source, its hits, and the document number of each hit, best first."""


@final
class DocumentIndex:
    """Documents of all lists. Each has a number, which indexes plain lists: its key is hashed once per copy."""

    __slots__ = ("_shared", "_starts", "identity", "keys", "lists", "numbers")

    def __init__(self, lists: Sequence[RankedList], identity: Identity) -> None:
        self.identity: Identity = identity
        self.lists: list[DocumentRanks] = []
        self.numbers: dict[str, int] = {}
        """Identity key -> number."""
        self._starts: list[int] = []
        """For each list, the number of the first document that no earlier list holds."""
        self._shared: dict[int, list[tuple[int, int]]] = {}
        """Number of a document in several lists -> (list, place in it), in list order."""
        for source in lists:
            self.lists.append(self._add(source))
        self.keys = list(self.numbers)
        """Identity keys by document number."""

    def copies(self, number: int) -> list[Copy]:
        """Every engine's copy of a document, in list order."""
        shared = self._shared.get(number)
        if shared is None:
            return [self._copy(*self._origin(number))]
        return [self._copy(at, place) for at, place in shared]

    def weights(self, number: int) -> list[float]:
        """The weight of every engine that returned a document."""
        shared = self._shared.get(number)
        if shared is None:
            return [self.lists[self._first(number)][0].weight]
        return [self.lists[at][0].weight for at, _ in shared]

    def places(self, key: str) -> list[tuple[int, int]]:
        """(list, place in it), both from 0, for each list that holds the document `key`."""
        number = self.numbers.get(key)
        if number is None:
            return []
        return self._shared.get(number) or [self._origin(number)]

    def _add(self, source: RankedList) -> DocumentRanks:
        """Number the documents of one list; each is kept once, at its best rank."""
        known = self.numbers
        start = len(known)
        self._starts.append(start)
        named: list[int] = []
        again: list[int] = []
        hits = source.hits if type(source.hits) is list else list(source.hits)
        for key in identify(hits, self.identity, source.namespace):
            number = known.get(key)
            if number is None:
                number = len(known)
                known[key] = number
            elif number >= start or not self._share(number, len(named)):
                # Repeated within this list: documents new here have numbers from `start` on.
                again.append(len(named) + len(again))
                continue
            named.append(number)
        if again:
            left_out = set(again)
            hits = [hit for place, hit in enumerate(hits) if place not in left_out]
        return source, hits, named

    def _share(self, number: int, place: int) -> bool:
        """Record that the list being added holds a document of an earlier list; False if it is recorded already."""
        current = len(self.lists)
        given = self._shared.get(number)
        if given is None:
            self._shared[number] = [self._origin(number), (current, place)]
            return True
        if given[-1][0] == current:
            return False
        given.append((current, place))
        return True

    def _first(self, number: int) -> int:
        """The first list that holds a document."""
        return bisect_right(self._starts, number) - 1

    def _origin(self, number: int) -> tuple[int, int]:
        """The first list that holds a document, and its place there."""
        first = self._first(number)
        # New documents are numbered in list order, so those before it in this list bound its place from below.
        return first, self.lists[first][2].index(number, number - self._starts[first])

    def _copy(self, at: int, place: int) -> Copy:
        source, hits, _ = self.lists[at]
        return source, place + 1, hits[place]

    def __repr__(self) -> str:
        return f"<DocumentIndex: {len(self.keys)} documents in {len(self.lists)} lists, {len(self._shared)} in several>"
