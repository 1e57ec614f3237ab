"""What learned calibration keeps of one engine, and how often each caller taught it. Pure: time is handed in.

A map's state has a fixed size. It is a sum, so that what several processes learn can be added up in any order.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from app.fusion.calibration import (
    MAX_REWARDS,
    ONLINE_FLOOR,
    PRIORS,
    EngineCalibration,
    Evidence,
    Example,
    Kind,
    LearnedMap,
    Moments,
    increments_of,
    size_of,
)
from app.protocol.advertisement import Advertisement
from app.state.sums import Kept, SumsUpdate

HOUR_SECONDS: Final = 3600
HOURS: Final = 24
FREE_EVENTS: Final = 10
"""Events of one caller in a day that count in full; of c events each counts min(1, 10/c)."""
MOST_CALLERS: Final = 10_000
RECENT_SCORES: Final = 200
"""Scores whose mean is compared with the mean of all before."""
FAR_DEVIATIONS: Final = 4.0
"""Standard deviations by which recent scores may differ before the map of scores starts anew."""
FOLLOW: Final = 0.05
"""Weight of one event in the running means of what an engine claims and what it is worth."""


class Callers:
    """How many events each caller sent within a day: counts by the hour, nothing else."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: OrderedDict[str, dict[int, int]] = OrderedDict()

    def count(self, caller: str, now: float) -> int:
        """Count one event; the number of events of the last 24 hours, this one included."""
        hour = int(now // HOUR_SECONDS)
        # Of the hour that began more than a day ago all events count: too strict a cap is the safe side.
        counts = {at: count for at, count in self._counts.pop(caller, {}).items() if at >= hour - HOURS}
        counts[hour] = counts.get(hour, 0) + 1
        self._counts[caller] = counts
        if len(self._counts) > MOST_CALLERS:
            self._counts.popitem(last=False)
        return sum(counts.values())

    def share(self, callers: Iterable[str], now: float) -> float:
        """ω of an event that all of these sent, such as a credential and its tenant: the strictest cap counts."""
        return min([1.0, *[FREE_EVENTS / self.count(caller, now) for caller in callers]])

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"<Callers: {len(self)} within a day>"


class MapState:
    """What one map has learned, and what of that other processes have not read yet."""

    __slots__ = (
        "_at",
        "_exchanged",
        "_pending",
        "_reset",
        "_theta",
        "claimed",
        "era",
        "evidence",
        "kind",
        "label",
        "moments",
        "worth",
    )

    def __init__(self, kind: Kind, now: float) -> None:
        self.kind: Kind = kind
        self.era = 0
        """Grows whenever a process begins anew; what was learned in another era does not count."""
        self.label: str | None = None
        """Version of the engine that the shared sums are about; None as long as there are none."""
        self._reset = False
        self._at = now
        self._clear()

    def _clear(self) -> None:
        self.evidence = Evidence(self.kind)
        self.moments = Moments()
        self.claimed = 0.0
        """Running mean of what the engine claimed of hits that were judged …"""
        self.worth = 0.0
        """… and of what these claims are worth by what was learned."""
        self._pending = [0.0] * size_of(self.kind)
        """Evidence since the last exchange."""
        self._exchanged = self.moments
        """The moments of the last exchange: what came since is the difference, which nobody has to keep."""
        self._theta = PRIORS[self.kind][0]

    @property
    def changed(self) -> bool:
        """Whether there is something for the other processes."""
        return self._reset or any(self._pending) or self.moments != self._exchanged

    @property
    def taught(self) -> bool:
        """Whether anything was learned, be it no more than the scale of scores."""
        return any(self.evidence.sums) or self.moments.seen > 0

    def learn(self, examples: Sequence[Example], now: float) -> bool:
        """Take in one judged answer; False if it cannot be counted. All of its hits use the θ from before it."""
        increments = increments_of(self.kind, self.evidence.theta(), examples, ONLINE_FLOOR)
        if increments is None:
            return False
        self.evidence.fade(now - self._at)
        self._at = max(self._at, now)
        self._add(increments)
        self._follow(examples)
        return True

    def observe(self, scores: Sequence[float]) -> None:
        """Take in the scores of one answer, judged or not."""
        self.moments = self.moments.observed(scores)

    def begin_anew(self) -> None:
        """Forget everything; the other processes do so at the next exchange."""
        self._clear()
        self._reset = True

    def load(self, sums: Sequence[float], moments: Moments) -> None:
        """Begin anew with what was learned elsewhere."""
        self.begin_anew()
        self._add(sums)
        self.moments = moments

    def learned(self) -> LearnedMap:
        """The map as fusion applies it."""
        return LearnedMap(self.kind, self._theta, self.evidence.n, self.moments.mean, self.moments.deviation)

    def addition(self, name: str, label: str) -> SumsUpdate:
        """What the other processes have not read yet. It is theirs from now on, unless it is `returned`."""
        whole = (*self.evidence.sums, *self.moments)
        values = [*self._pending, *_differences(self.moments, self._exchanged)]
        self._pending, self._exchanged = [0.0] * len(self._pending), self.moments
        reset, self._reset = self._reset, False
        return SumsUpdate(name, values, self.era, label, reset, size_of(self.kind), MAX_REWARDS, whole)

    def returned(self, addition: SumsUpdate) -> None:
        """The exchange failed: this is sent later, with what was learned since."""
        if self._reset:
            return  # begun anew meanwhile, so what was on its way is to be forgotten
        width = len(self._pending)
        self._pending = [ours + theirs for ours, theirs in zip(self._pending, addition.values[:width], strict=True)]
        self._exchanged = Moments(*_differences(self._exchanged, addition.values[width:]))
        self._reset = addition.reset

    def merge(self, addition: SumsUpdate, kept: Kept, now: float) -> None:
        """Go on from the sums of all processes, which `addition` is part of."""
        another = not addition.reset and kept.era != addition.era
        self.era = kept.era
        self.label = kept.label
        if self._reset:
            return  # begun anew meanwhile
        if another:
            # Another process has begun anew: what was learned here since the exchange began is of the era before.
            self._pending = [0.0] * len(self._pending)
            self._exchanged = self.moments
            self.claimed = self.worth = 0.0
        width = len(self._pending)
        sums = [theirs + ours for theirs, ours in zip(kept.values[:width], self._pending, strict=True)]
        self.evidence = Evidence(self.kind, sums)
        self.evidence.fade(now - kept.at)
        since = _differences(self.moments, self._exchanged)
        self._exchanged = Moments(*kept.values[width:])
        self.moments = Moments(*(theirs + ours for theirs, ours in zip(self._exchanged, since, strict=True)))
        self._at = now
        self._theta = self.evidence.theta()

    def view(self) -> dict[str, Any]:
        """What was learned, for people."""
        learned = self.learned()
        view: dict[str, Any] = {
            "n": round(learned.n, 3),
            "trust": round(learned.trust, 4),
            "theta": [round(value, 4) for value in learned.theta],
            "claimed": round(self.claimed, 4),
            "worth": round(self.worth, 4),
        }
        if self.kind == "silent":
            view |= {"mean": learned.mean, "sd": learned.sd}
        return view

    def _add(self, increments: Sequence[float]) -> None:
        self.evidence.add(increments)
        for place, value in enumerate(increments):
            self._pending[place] += value
        self._theta = self.evidence.theta()

    def _follow(self, examples: Sequence[Example]) -> None:
        weight = sum([example.weight for example in examples])
        if weight <= 0:
            return
        features = [example.features for example in examples]
        claims = LearnedMap(self.kind, PRIORS[self.kind][0], 0.0).chances(features)
        worths = self.learned().chances(features)
        claimed = sum([one.weight * chance for one, chance in zip(examples, claims, strict=True)]) / weight
        worth = sum([one.weight * chance for one, chance in zip(examples, worths, strict=True)]) / weight
        share = FOLLOW if self.claimed else 1.0
        self.claimed += share * (claimed - self.claimed)
        self.worth += share * (worth - self.worth)

    def __repr__(self) -> str:
        return f"<MapState {self.evidence!r}, era {self.era}{', changed' if self.changed else ''}>"


class EngineLearning:
    """The maps of one engine in one scope, and what the engine was when they were learned."""

    __slots__ = ("_advertisement", "_before", "_recent", "confident", "label", "silent", "used")

    def __init__(self, now: float) -> None:
        self.confident = MapState("confident", now)
        self.silent = MapState("silent", now)
        self.label = ""
        """Version of the engine; empty as long as it is not known."""
        self.used = True
        """Since the last exchange."""
        self._advertisement: Advertisement | None = None
        self._recent = (0, 0.0)
        self._before = Moments()

    @property
    def maps(self) -> tuple[MapState, MapState]:
        """Of both kinds of list."""
        return self.confident, self.silent

    def of(self, kind: Kind) -> MapState:
        """The state of one kind of list."""
        return self.confident if kind == "confident" else self.silent

    def calibration(self) -> EngineCalibration:
        """The maps as fusion applies them."""
        return EngineCalibration(self.confident.learned(), self.silent.learned())

    def renewed(self, advertisement: Advertisement | None) -> bool:
        """Whether the engine has become another version since the last request, and the shared sums are not its."""
        if advertisement is None or advertisement is self._advertisement:
            return False
        self._advertisement = advertisement
        before, self.label = self.label, label_of(advertisement)
        return before not in ("", self.label) and self.silent.label != self.label

    def observe(self, scores: Sequence[float]) -> bool:
        """Take in the scores of one answer; whether recent ones are far from all that the engine gave before."""
        count, total = self._recent
        if not count:
            self._before = self.silent.moments
        count, total = count + len(scores), total + sum(scores)
        self.silent.observe(scores)
        self._recent = (count, total) if count < RECENT_SCORES else (0, 0.0)
        before = self._before
        if count < RECENT_SCORES or before.seen < RECENT_SCORES or before.deviation == 0:
            return False
        return abs(total / count - before.mean) > FAR_DEVIATIONS * before.deviation

    def __repr__(self) -> str:
        return f"<EngineLearning {self.label or 'of an unknown version'}: {self.confident!r}, {self.silent!r}>"


def _differences(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(these, those, strict=True)]


def label_of(advertisement: Advertisement) -> str:
    """What makes an engine another one whose scores may mean something else: its name, version, and whether it serves
    versions of its index."""
    snapshots = advertisement.retrieve is not None and advertisement.retrieve.snapshots
    server = advertisement.server
    return f"{server['name']} {server['version']}{' snapshots' if snapshots else ''}"[:300]
