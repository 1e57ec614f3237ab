"""The documents of several ranked lists, numbered as they are met: who named which, and at what rank.

Decides what a list is once duplicates inside it are gone: the best rank is kept, later ranks close up.
It refuses to know points, and what hits hold beyond their identity.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, final

from app.fusion.copies import Copy
from app.fusion.identity import Identity, identify
from app.fusion.ranked_lists import RankedList

DocumentRanks = tuple[RankedList, list[dict[str, Any]], list[int]]
"""A ranked list without inner duplicates: its source, its hits, and the number of each one's document, best first. A
plain tuple, because eight of them are unpacked again and again."""


@final
class DocumentIndex:
    """Every document has a number, so that what is known of it stands in lists; it is hashed once per copy."""

    __slots__ = ("_shared", "_starts", "ballots", "identity", "keys", "numbers")

    def __init__(self, lists: Sequence[RankedList], identity: Identity) -> None:
        self.identity: Identity = identity
        self.ballots: list[DocumentRanks] = []
        self.numbers: dict[str, int] = {}
        """Identity key -> number."""
        self._starts: list[int] = []
        """By ballot, the number of the first document that no ballot before it names."""
        self._shared: dict[int, list[tuple[int, int]]] = {}
        """Number of a document that several ballots name -> those ballots, with its place on them."""
        for source in lists:
            self.ballots.append(self._cast(source))
        self.keys = list(self.numbers)
        """By number, the identity key."""

    def copies(self, number: int) -> list[Copy]:
        """Every engine's copy of a document, in the order of the ballots."""
        shared = self._shared.get(number)
        if shared is None:
            return [self._copy(*self._origin(number))]
        return [self._copy(turn, place) for turn, place in shared]

    def weights(self, number: int) -> list[float]:
        """The weight of every engine that gave a document."""
        shared = self._shared.get(number)
        if shared is None:
            return [self.ballots[self._first(number)][0].weight]
        return [self.ballots[turn][0].weight for turn, _ in shared]

    def places(self, key: str) -> list[tuple[int, int]]:
        """The index of each ballot that names the document `key`, and its place on it."""
        number = self.numbers.get(key)
        if number is None:
            return []
        return self._shared.get(number) or [self._origin(number)]

    def _cast(self, source: RankedList) -> DocumentRanks:
        """The ballot of one engine: every document once, at its best rank."""
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
                again.append(len(named) + len(again))
                continue
            named.append(number)
        if again:
            left_out = set(again)
            hits = [hit for place, hit in enumerate(hits) if place not in left_out]
        return source, hits, named

    def _share(self, number: int, place: int) -> bool:
        """Note that the ballot being cast names a document of an earlier one; whether it did not before."""
        turn = len(self.ballots)
        given = self._shared.get(number)
        if given is None:
            self._shared[number] = [self._origin(number), (turn, place)]
            return True
        if given[-1][0] == turn:
            return False
        given.append((turn, place))
        return True

    def _first(self, number: int) -> int:
        """The first ballot that names a document."""
        return bisect_right(self._starts, number) - 1

    def _origin(self, number: int) -> tuple[int, int]:
        """The first ballot that names a document, and its place there."""
        turn = self._first(number)
        # All documents that were new on this ballot before it stand before it.
        return turn, self.ballots[turn][2].index(number, number - self._starts[turn])

    def _copy(self, turn: int, place: int) -> Copy:
        source, hits, _ = self.ballots[turn]
        return source, place + 1, hits[place]

    def __repr__(self) -> str:
        return f"<Roll of {len(self.keys)} documents on {len(self.ballots)} ballots, {len(self._shared)} on several>"
