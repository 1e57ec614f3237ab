"""The blend itself: confidence-tempered RRF, weighted and convex sums, and which of them these engines allow.

Turns ranked lists into points per document and hands them to the tally. Engines are walked in id order and sums are
exact, so nothing depends on who answered first. It refuses to know bodies, meta and the wire.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import fsum, isfinite

from app.fusion.confidence import SILENCE, Claims, Testimony, consensus, read_claims, weigh_claims
from app.fusion.merge import Fusion
from app.fusion.ranked import Ballot, FusionOptions, Method, RankedList, cast
from app.fusion.tally import Points, count


def fuse(lists: Sequence[RankedList], options: FusionOptions) -> Fusion:
    """One ranked list out of many (RCP §16.3). Every list given is of an engine that answered, even an empty one.

    Convex falls back to rrf, with a note, unless every list states a `score_floor`. Raises nothing for lists that keep
    the promises of RankedList.
    """
    identity = options.identity
    ballots = [cast(ranked, identity) for ranked in sorted(lists, key=_engine_of)]
    claims = [SILENCE if ballot.source.confidence == "ignore" else read_claims(ballot.hits) for ballot in ballots]
    method, fallback = _allowed(options.method, ballots)
    weights = [ballot.source.weight for ballot in ballots]
    if method == "rrf":
        table = reciprocals(options.rrf_k, _table_size(ballots))
        points = _tempered(ballots, claims, table, options.confidence_weight)
        ceiling = fsum([weight * table[0] for weight in weights])
    else:
        points = [_scaled(ballot, method) for ballot in ballots]
        ceiling = fsum(weights)
    return Fusion(method, (*fallback, *_faults(ballots, claims)), count(ballots, points, ceiling, identity), identity)


def _engine_of(ranked: RankedList) -> str:
    return ranked.engine


def _allowed(wished: Method, ballots: Sequence[Ballot]) -> tuple[Method, tuple[str, ...]]:
    without = [ballot.source.engine for ballot in ballots if ballot.source.score_floor is None]
    if wished != "convex" or not without:
        return wished, ()
    return "rrf", (f"fusion: rrf in place of convex, which needs a scoreFloor from {', '.join(without)}",)


def _faults(ballots: Sequence[Ballot], claims: Sequence[Claims]) -> Iterable[str]:
    for ballot, claim in zip(ballots, claims, strict=True):
        if claim.faults:
            yield f"{ballot.source.engine}: {claim.faults} confidence value(s) not in [0,1] counted as missing"


def _table_size(ballots: Sequence[Ballot]) -> int:
    """A power of two longer than every list, so that few tables serve all lengths."""
    longest = max([len(ballot.places) for ballot in ballots], default=0)
    return 1 << max(7, longest.bit_length())


@lru_cache(maxsize=64)
def reciprocals(rrf_k: int, size: int) -> tuple[float, ...]:
    """1/(rrfK + r) for r = 1 … size."""
    return tuple([1 / (rrf_k + rank) for rank in range(1, size + 1)])


def _tempered(
    ballots: Sequence[Ballot], claims: Sequence[Claims], table: tuple[float, ...], beta: float
) -> list[Points]:
    """w·[(1 − β) + β·ĉ(r)]/(rrfK + r); plain points if β is 0 or no engine with a weight gives any confidence."""
    testimonies = [_testimony(ballot, claim) for ballot, claim in zip(ballots, claims, strict=True)]
    heard = [(b.source.weight, said) for b, said in zip(ballots, testimonies, strict=True) if said is not None]
    if beta == 0 or not heard:
        return [_plain(ballot.source.weight, table) for ballot in ballots]
    level = consensus(heard)
    longest = max([len(ballot.places) for ballot in ballots])
    level += level[-1:] * (longest - len(level))
    return [
        _believed(ballot.source.weight, beta, table, level, said)
        for ballot, said in zip(ballots, testimonies, strict=True)
    ]


def _testimony(ballot: Ballot, claims: Claims) -> Testimony | None:
    """None for an engine that gave no confidence, or whose weight is 0: it has no say in the consensus."""
    source = ballot.source
    if not claims.values or source.weight <= 0:
        return None
    return weigh_claims(claims, max(source.fetch_k, len(ballot.places)), source.confidence == "independent")


def _plain(weight: float, table: tuple[float, ...]) -> Points:
    return table if weight == 1 else [weight * reciprocal for reciprocal in table]


def _believed(
    weight: float, beta: float, table: tuple[float, ...], level: Sequence[float], said: Testimony | None
) -> Points:
    """The points of one list, tempered by its testimony or, without one, by the consensus `level`.

    The bracket is written as 1 − β(1 − ĉ), so that full confidence is exactly the plain point.
    """
    share = weight * beta
    if said is None:
        return [t * (weight - share * (1.0 - c)) for t, c in zip(table, level, strict=False)]
    curve, modesty, boast = said
    return [
        t * (weight - share * (1.0 - (c + (boast if p > c else modesty) * (p - c))))
        for t, c, p in zip(table, level, curve, strict=False)
    ]


def _scaled(ballot: Ballot, method: Method) -> Points:
    """Weight times the score brought into [0,1] between the list's lowest score, or its floor, and its highest.

    Without a span, weighted gives 1 to all (RCP §16.3) and convex 0: their best is as low as a score can be.
    """
    weight, floor = ballot.source.weight, ballot.source.score_floor
    scores = [float(hit["score"]) for hit in ballot.hits]
    finite = [score for score in scores if isfinite(score)] or [0.0]
    top = max(finite)
    low = floor if method == "convex" and floor is not None else min(finite)
    if top <= low:
        return [weight if method == "weighted" and isfinite(score) else 0.0 for score in scores]
    # Halved where the span of two huge scores would not be finite.
    scale = 1.0 if isfinite(top - low) else 0.5
    low *= scale
    span = top * scale - low
    # `max` in this order makes 0 of NaN, too.
    return [weight * min(1.0, max(0.0, (score * scale - low) / span)) for score in scores]
