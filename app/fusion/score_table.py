"""Points summed per document, and the total order of documents (RCP §16.3).

Order: higher sum, then higher summed weight, then smaller stringified id. Sums are exact and compared in units of
1e-12, so that equal documents tie whichever engines returned them.
"""

from math import frexp, fsum
from typing import Final, final

from app.fusion.copies import richest
from app.fusion.document_index import DocumentIndex
from app.fusion.identity import public_id

UNIT: Final = 1e12
"""Units of 1: sums are compared after rounding to 1/UNIT."""

_ROUNDING: Final = 6755399441055744.0
"""1.5 · 2^52. Adding and subtracting it rounds a number below 2^51 to the nearest integer, faster than `round`."""


@final
class ScoreTable:
    """Sums by document number in whole units of 1/UNIT; `ceiling` is the largest possible sum.

    Ties are broken lazily, down to the last position that is read: usually ten of a hundred documents.
    """

    __slots__ = ("_order", "_sorted", "ceiling", "document_index", "units")

    def __init__(
        self, document_index: DocumentIndex, units: list[float], ceiling: float, order: list[int] | None = None
    ) -> None:
        """`order`: a final order of documents; by default all of them by their sums."""
        self.document_index = document_index
        self.units = units
        self.ceiling = ceiling
        self._sorted = 0 if order is None else len(order)
        self._order: list[int] = _by_sum(units) if order is None else order

    def order(self, stop: int | None = None) -> list[int]:
        """Document numbers, best first. Ties are broken up to position `stop` (default: all)."""
        wanted = len(self._order) if stop is None else min(stop, len(self._order))
        if self._sorted < wanted:
            self._sort(wanted)
        return self._order

    def picked(self, numbers: list[int]) -> "ScoreTable":
        """A table of only these documents, in this order, with the same sums."""
        return ScoreTable(self.document_index, self.units, self.ceiling, numbers)

    def _sort(self, wanted: int) -> None:
        """Sort each run of equal sums that begins before `wanted`."""
        order, units = self._order, self.units
        start, end = self._sorted, len(order)
        while start < wanted:
            sum_here = units[order[start]]
            stop = start + 1
            while stop < end and units[order[stop]] == sum_here:
                stop += 1
            if stop - start > 1:
                order[start:stop] = sorted(order[start:stop], key=self._tie_break)
            start = stop
        self._sorted = start

    def _tie_break(self, number: int) -> tuple[float, str, str]:
        """Sort key among equal sums: more summed weight first, then the smaller id, then the key."""
        document_index = self.document_index
        weight, key = fsum(document_index.weights(number)), document_index.keys[number]
        if document_index.identity == "id":
            return -weight, key, key
        # Identity by URL or text: the id shown to callers, which the richest copy decides, is the tie-break.
        source, _, hit = richest(document_index.copies(number))
        return -weight, str(public_id(hit, source.namespace)), key

    def __repr__(self) -> str:
        return f"<ScoreTable: {len(self.units)} documents, {self._sorted} in final order>"


def _by_sum(units: list[float]) -> list[int]:
    """The numbers of all documents, the highest sum first."""
    return sorted(range(len(units)), key=units.__getitem__, reverse=True)


def grid_for(ceiling: float) -> float:
    """A number G such that (x + G) − G brings x to a grid on which sums up to `ceiling` are exact in any order.

    Points on it can be added one by one and still give what `math.fsum` gives: no partial sum is ever rounded. The
    grid is finer than 1e-15 of `ceiling`.
    """
    return 3.0 * 2.0 ** frexp(ceiling)[1]


def count(document_index: DocumentIndex, points: list[list[float]], ceiling: float) -> ScoreTable:
    """Add up the points of each list and order the documents.

    `points` by list and rank, best first; a row may be longer than its list. They lie on the grid of `ceiling`, the
    largest possible sum, so adding them in any order is exact.
    """
    sums = [0.0] * len(document_index.keys)
    for (_, _, named), given in zip(document_index.lists, points):
        for number, point in zip(named, given):
            sums[number] = sums[number] + point  # compiled, `+=` would go through the objects
    units = [(value * UNIT + _ROUNDING) - _ROUNDING for value in sums]
    return ScoreTable(document_index, units, (ceiling * UNIT + _ROUNDING) - _ROUNDING)
