"""Points summed per document, and the total order of documents (RCP §16.3).

Decides who comes first: the higher sum, then the higher summed weight, then the smaller stringified id. Sums are exact
and compared in units of 1e-12, so that equal documents stay equal whoever returned them.
"""

from collections.abc import Iterable, Sequence
from math import frexp, fsum

from app.fusion.copies import copies_of, richest
from app.fusion.identity import Identity, public_id
from app.fusion.ranked import Ballot

UNIT = 1e12
"""Units of 1: sums are compared after rounding to 1/UNIT."""

_ROUNDING = 1.5 * 2.0**52
"""Added to and taken from a number of less than 2^51 it leaves the nearest whole one; larger ones have no fraction to
speak of."""

Points = Iterable[float]
"""What one ballot adds to its documents, best rank first; may be longer than the ballot."""


class Tally:
    """The outcome of the count. `units` are S in whole units of 1/UNIT by document, `ceiling` the most S could be.

    Ties are settled only as far down as somebody looks: of a hundred documents ten are asked for.
    """

    __slots__ = ("_identity", "_order", "_settled", "ballots", "ceiling", "units")

    def __init__(self, ballots: Sequence[Ballot], units: dict[str, float], ceiling: float, identity: Identity) -> None:
        self.ballots = ballots
        self.units = units
        self.ceiling = ceiling
        self._identity = identity
        self._order = sorted(units, key=units.__getitem__, reverse=True)
        self._settled = 0

    def order(self, stop: int | None = None) -> list[str]:
        """The documents' keys, best first; correct up to `stop` (all by default)."""
        wanted = len(self._order) if stop is None else min(stop, len(self._order))
        if self._settled < wanted:
            self._settle(wanted)
        return self._order

    def picked(self, keys: Sequence[str]) -> "Tally":
        """The same sums with only these documents, in this order."""
        chosen = Tally(self.ballots, self.units, self.ceiling, self._identity)
        chosen._order = list(keys)
        chosen._settled = len(keys)
        return chosen

    def _settle(self, wanted: int) -> None:
        """Put each run of equal sums that begins before `wanted` into its order."""
        order, units = self._order, self.units
        start, end = self._settled, len(order)
        while start < wanted:
            sum_here = units[order[start]]
            stop = start + 1
            while stop < end and units[order[stop]] == sum_here:
                stop += 1
            if stop - start > 1:
                order[start:stop] = sorted(order[start:stop], key=self._standing)
            start = stop
        self._settled = start

    def _standing(self, key: str) -> tuple[float, str, str]:
        """What decides between equal sums: more summed weight first, then the smaller id (then the key)."""
        weight = fsum([source.weight for source, _, places in self.ballots if key in places])
        return -weight, key if self._identity == "id" else self._kept_id(key), key

    def _kept_id(self, key: str) -> str:
        source, _, hit = richest(copies_of(key, self.ballots))
        return str(public_id(hit, source.namespace))

    def __repr__(self) -> str:
        return f"<Tally of {len(self.units)} documents, settled to {self._settled}>"


def grid_for(ceiling: float) -> float:
    """A number G such that (x + G) − G brings x to a grid on which sums up to `ceiling` are exact in any order.

    Points on it can be added one by one and still give what `math.fsum` gives: no partial sum is ever rounded. The
    grid is finer than 1e-15 of `ceiling`.
    """
    return 3.0 * 2.0 ** frexp(ceiling)[1]


def count(ballots: Sequence[Ballot], points: Sequence[Points], ceiling: float, identity: Identity) -> Tally:
    """Add up the points and order the documents. Points lie on the grid of `ceiling`, the most one can have."""
    sums: dict[str, float] = {}
    for (_, _, places), given in zip(ballots, points, strict=True):
        if sums.keys().isdisjoint(places):
            sums.update(zip(places, given, strict=False))
            continue
        for key, point in zip(places, given, strict=False):
            sums[key] = sums[key] + point if key in sums else point
    units = {key: (value * UNIT + _ROUNDING) - _ROUNDING for key, value in sums.items()}
    return Tally(ballots, units, (ceiling * UNIT + _ROUNDING) - _ROUNDING, identity)
