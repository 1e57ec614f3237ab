"""Which engines gave the hits of a session's answers, and how they stood there, so that feedback can teach.

Kept for each session: the shown ids in order, and for each the engines that returned it with the features that learned
calibration looks at. A hit is learned once per answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.fusion.calibration import Features
from app.fusion.merge import Claim
from app.state.store import Store

PREFIX: Final = "shown:"

MOST_SHOWN: Final = 50
"""Hits of one answer that are remembered: hardly anybody looks at more."""

Judged = list[tuple[int, float | None, list[Claim]]]
"""Of one answer, the hits to learn from: place from 1, reward in [0,1] (None without a signal), and the claims."""

_FRESH, _SEEN, _SIGNALLED = 0, 1, 2
"""What was learned of a shown hit: nothing, that it had no signal, what its signal said."""

Shown = list[list[Any]]
"""One answer, best hit first: id, one of the three above, and its claims as `[engine, kind, φ without its 1]`."""


class Attributions:
    """The answers of the sessions under way. A session is remembered for `seconds` after its last answer."""

    __slots__ = ("_max_hits", "_scope", "_seconds", "_store")

    def __init__(self, store: Store, seconds: float, max_hits: int, scope: str = "") -> None:
        """At most `max_hits` hits of a session are remembered; the oldest answers are dropped first."""
        self._scope = PREFIX + scope
        self._store = store
        self._seconds = seconds
        self._max_hits = max_hits

    def for_tenant(self, tenant_id: str) -> "Attributions":
        """The sessions of one tenant."""
        return Attributions(self._store, self._seconds, self._max_hits, f"{tenant_id}:")

    async def remember(self, session_id: str, ids: Sequence[str], claims: Sequence[Sequence[Claim]]) -> None:
        """One answer showed these hits, in this order."""
        shown: Shown = [
            [hit_id, _FRESH, [[engine, kind, *phi[1:]] for engine, kind, phi in given]]
            for hit_id, given in list(zip(ids, claims, strict=True))[: min(MOST_SHOWN, self._max_hits)]
        ]
        if not shown:
            return

        def change(answers: list[Shown] | None) -> list[Shown]:
            answers = [*(answers or []), shown]
            while len(answers) > 1 and sum([len(answer) for answer in answers]) > self._max_hits:
                del answers[0]
            return answers

        await self._store.change(self._scope + session_id, change, self._seconds, _as_it_is, _as_it_is, size=_size)

    async def judged(self, session_id: str, rewards: Mapping[str, float]) -> tuple[list[Judged], frozenset[str]]:
        """What can be learned from rewards by hit id: of each answer that has one of them, its hits. And the ids that
        nothing can be learned from: the hit is not remembered, or its signal was learned before."""
        found: list[Judged] = []
        left: dict[str, float] = {}

        def change(answers: list[Shown] | None) -> list[Shown] | None:
            nonlocal found, left
            # May be called again where another process was quicker, so nothing of the call before may stay.
            found, left = [], dict(rewards)
            changed = [_judged(answer, left, found) for answer in reversed(answers or [])]
            return changed[::-1] if found else None

        await self._store.change(self._scope + session_id, change, self._seconds, _as_it_is, _as_it_is, size=_size)
        return found, frozenset(left)

    def __repr__(self) -> str:
        return f"<Attributions for {self._seconds:g} s in {self._store!r}>"


def _judged(answer: Shown, left: dict[str, float], found: list[Judged]) -> Shown:
    """The answer after these rewards, which are taken out of `left`; what is to be learned of it joins `found`.

    A later signal on a hit that was learned without one is learned as well: its weight then adds to the smaller one.
    """
    praised = {hit_id for hit_id, state, _ in answer if hit_id in left and state != _SIGNALLED}
    if not praised:
        return answer
    lesson: Judged = []
    after: Shown = []
    for place, (hit_id, state, claims) in enumerate(answer, 1):
        if hit_id in praised or state == _FRESH:
            lesson.append((place, left.get(hit_id), [_claim(one) for one in claims]))
            state = _SIGNALLED if hit_id in praised else _SEEN
        after.append([hit_id, state, claims])
    for hit_id in praised:
        del left[hit_id]
    found.append(lesson)
    return after


def _claim(plain: Sequence[Any]) -> Claim:
    engine, kind, *rest = plain
    phi: Features = (1.0, *rest)
    return engine, kind, phi


def _size(answers: list[Shown]) -> int:
    return 1 + sum([1 + len(claims) for answer in answers for _, _, claims in answer])


def _as_it_is(value: Any) -> Any:
    return value
