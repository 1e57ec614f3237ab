"""Points summed per document, and the total order of documents (RCP §16.3).

Decides who comes first: the higher sum, then the higher summed weight, then the smaller stringified id. Sums are exact
and compared in units of 1e-12, so that equal documents stay equal whoever returned them.
"""

from collections.abc import Iterable, Sequence
from math import fsum
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


def count(ballots: Sequence[Ballot], points: Sequence[Points], ceiling: float, identity: Identity) -> Tally:
    """Sum the points and put the documents in order. `ceiling` is the most points one document could have."""
    sums: dict[str, float] = {}
    total = 0
    for ballot, given in zip(ballots, points, strict=True):
        sums.update(zip(ballot.places, given, strict=False))
        total += len(ballot.places)
    alone = len(sums) == total
    if not alone:
        sums = _summed(ballots, points)
    units = {key: (value * UNIT + _ROUNDING) - _ROUNDING for key, value in sums.items()}
    order = sorted(units, key=units.__getitem__, reverse=True)
    if len(set(units.values())) < len(units):
        order = _settled(ballots, units, alone, identity)
    return Tally(ballots, order, units, (ceiling * UNIT + _ROUNDING) - _ROUNDING)


def _summed(ballots: Sequence[Ballot], points: Sequence[Points]) -> dict[str, float]:
    parts: dict[str, list[float]] = {}
    for ballot, given in zip(ballots, points, strict=True):
        for key, point in zip(ballot.places, given, strict=False):
            if key in parts:
                parts[key].append(point)
            else:
                parts[key] = [point]
    return dict(zip(parts, map(fsum, parts.values()), strict=True))


def _settled(ballots: Sequence[Ballot], units: dict[str, float], alone: bool, identity: Identity) -> list[str]:
    """The order where sums tie, by stable sorts from the last criterion to the first."""
    order = sorted(units)
    if identity != "id":
        order.sort(key=lambda key: _kept_id(key, ballots))
    weights = {ballot.source.weight for ballot in ballots}
    if len(weights) > 1 or not alone:
        order.sort(key=lambda key: _summed_weight(key, ballots), reverse=True)
    order.sort(key=units.__getitem__, reverse=True)
    return order


def _summed_weight(key: str, ballots: Sequence[Ballot]) -> float:
    return fsum([ballot.source.weight for ballot in ballots if key in ballot.places])


def _kept_id(key: str, ballots: Sequence[Ballot]) -> str:
    source, _, hit = richest(copies_of(key, ballots))
    return str(public_id(hit, source.namespace))
