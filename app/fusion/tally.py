"""Points summed per document, and the total order of documents (RCP §16.3).

Decides who comes first: the higher sum, then the higher summed weight, then the smaller stringified id. Sums are exact
and compared in units of 1e-12, so that equal documents stay equal whoever returned them.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from math import frexp, fsum
from typing import NamedTuple

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


class Tally(NamedTuple):
    """The outcome of the count. `units` are S in whole units of 1/UNIT by document, `ceiling` the most S could be."""

    ballots: Sequence[Ballot]
    order: Sequence[str]
    units: dict[str, float]
    ceiling: float


def grid_for(ceiling: float) -> float:
    """A number G such that (x + G) − G brings x to a grid on which sums up to `ceiling` are exact in any order.

    Points on it can be added one by one and still give what `math.fsum` gives: no partial sum is ever rounded. The
    grid is finer than 1e-15 of `ceiling`.
    """
    return 3.0 * 2.0 ** frexp(ceiling)[1]


def count(ballots: Sequence[Ballot], points: Sequence[Points], ceiling: float, identity: Identity) -> Tally:
    """Add up the points and order the documents. Points lie on the grid of `ceiling`, the most one can have."""
    sums = _summed(ballots, points)
    units = {key: (value * UNIT + _ROUNDING) - _ROUNDING for key, value in sums.items()}
    order = sorted(units, key=units.__getitem__, reverse=True)
    if len(set(units.values())) < len(units):
        order = _settled(ballots, units, identity)
    return Tally(ballots, order, units, (ceiling * UNIT + _ROUNDING) - _ROUNDING)


def _summed(ballots: Sequence[Ballot], points: Sequence[Points]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (_, _, places), given in zip(ballots, points, strict=True):
        if sums.keys().isdisjoint(places):
            sums.update(zip(places, given, strict=False))
            continue
        for key, point in zip(places, given, strict=False):
            sums[key] = sums[key] + point if key in sums else point
    return sums


def _settled(ballots: Sequence[Ballot], units: dict[str, float], identity: Identity) -> list[str]:
    """The order where sums tie, by stable sorts from the last criterion to the first."""
    order = sorted(units)
    if identity != "id":
        order.sort(key=lambda key: _kept_id(key, ballots))
    weights = [source.weight for source, _, _ in ballots]
    grid = grid_for(fsum(weights))
    standing = _summed(ballots, [repeat((weight + grid) - grid) for weight in weights])
    order.sort(key=standing.__getitem__, reverse=True)
    order.sort(key=units.__getitem__, reverse=True)
    return order


def _kept_id(key: str, ballots: Sequence[Ballot]) -> str:
    source, _, hit = richest(copies_of(key, ballots))
    return str(public_id(hit, source.namespace))
