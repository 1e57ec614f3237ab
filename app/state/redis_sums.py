"""Sums that gateways share, one hash in Redis for each name: every process adds its own increments (HINCRBYFLOAT).

Only the holder of a short lock scales a hash for forgetting. It does so by adding the difference, so that what others
add at the same time is not lost.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from app.state.redis import RedisConnection
from app.state.sums import SCALE_SECONDS, Kept, SumsUpdate, share_left

KEPT_SECONDS = 120 * 86400
"""A hash that nobody adds to is gone after this time; little is left of its evidence by then."""
LOCK_MS = 5000
MOST_AT_ONCE = 64
"""Names of one pipeline: a longer one would take Redis longer than it may be silent."""


class SharedSums:
    """Satisfies `state.sums.Sums`."""

    __slots__ = ("_link", "_prefix")

    def __init__(self, link: RedisConnection, prefix: Callable[[], str]) -> None:
        """`prefix`: what every key begins with, at this moment."""
        self._link = link
        self._prefix = prefix

    async def exchange(self, additions: Sequence[SumsUpdate], now: float) -> Mapping[str, Kept]:
        """Add and read. Raises StateUnreachable; of several pipelines some may have been executed then, so that
        their additions may be made twice."""
        found: dict[str, Kept] = {}
        for start in range(0, len(additions), MOST_AT_ONCE):
            part = additions[start : start + MOST_AT_ONCE]
            found |= await self._link.ask(partial(self._exchanged, part, now))
        return found

    async def _exchanged(self, additions: Sequence[SumsUpdate], now: float, redis: Any) -> dict[str, Kept]:
        keys = [self._key(addition.name) for addition in additions]
        async with redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(key, "era", "width", "label")
            # A key that something else has written to must not count as a Redis that is lost.
            states = await pipe.execute(raise_on_error=False)
        places = []
        async with redis.pipeline(transaction=True) as pipe:
            for key, addition, state in zip(keys, additions, states, strict=True):
                _write(pipe, key, addition, (None, None, None) if isinstance(state, Exception) else state, now)
                places.append(len(pipe))
                pipe.hgetall(key)
            answers = await pipe.execute(raise_on_error=False)
        found = {}
        for key, addition, place in zip(keys, additions, places, strict=True):
            stored = answers[place]
            kept = _kept(stored, len(addition.values), now) if type(stored) is dict and stored else None
            if kept is None:
                if stored:
                    await redis.delete(key)  # not of our making
                continue
            if await self._due(redis, key, addition, kept, now):
                kept = await self._scaled(redis, key, addition, kept, now)
            found[addition.name] = kept
        return found

    async def _due(self, redis: Any, key: str, addition: SumsUpdate, kept: Kept, now: float) -> bool:
        """Whether it is time to scale this hash, and this process is the one to do it."""
        if not addition.fading:
            return False
        over = bool(addition.most) and kept.values[addition.fading - 1] > addition.most
        if now - kept.at < SCALE_SECONDS and not over:
            return False
        return bool(await redis.set(f"{key}:lock", b"", nx=True, px=LOCK_MS))

    async def _scaled(self, redis: Any, key: str, addition: SumsUpdate, kept: Kept, now: float) -> Kept:
        """The sums after forgetting. Read again under the lock: another process may have scaled them just before."""
        kept = _kept(await redis.hgetall(key), len(addition.values), now) or kept
        share = share_left(addition, kept.values[addition.fading - 1], now - kept.at)
        async with redis.pipeline(transaction=True) as pipe:
            for place, value in enumerate(kept.values[: addition.fading]):
                if value:
                    pipe.hincrbyfloat(key, f"v{place}", (share - 1) * value)
            pipe.hset(key, "at", now)
            pipe.hgetall(key)
            answers = await pipe.execute()
        await redis.delete(f"{key}:lock")
        return _kept(answers[-1], len(addition.values), now) or kept

    def _key(self, name: str) -> str:
        return f"{self._prefix()}:calibration:{name}"

    def __repr__(self) -> str:
        return f"<SharedSums over {self._link!r}>"


def _write(pipe: Any, key: str, addition: SumsUpdate, state: Sequence[bytes | None], now: float) -> None:
    """The commands that add to one hash, given the era, the number of values and the label that it has."""
    era, width, label = state
    known = era is not None and width == b"%d" % len(addition.values)
    values = addition.values if known or addition.reset else addition.whole
    if not known and not addition.reset and not any(values):
        return  # a process that has learned nothing begins nothing, or what others know would be lost
    if addition.reset or (era is not None and not known):
        pipe.delete(key)
    if addition.reset or not known:
        # Not overwritten: several processes may begin at the same time, and what each adds counts.
        fresh = {"era": int(era or addition.era) + addition.reset, "width": len(addition.values), "at": now}
        for field, value in {**fresh, "label": addition.label}.items():
            pipe.hsetnx(key, field, value)
    elif addition.label and not label:
        pipe.hset(key, "label", addition.label)
    if addition.reset or not known or era == b"%d" % addition.era:
        for place, value in enumerate(values):
            if value:
                pipe.hincrbyfloat(key, f"v{place}", value)
    pipe.expire(key, KEPT_SECONDS)


def _kept(stored: Mapping[bytes, bytes], width: int, now: float) -> Kept | None:
    """The sums of a hash as Redis gives it; None if they are no numbers."""
    try:
        values = tuple([float(stored.get(b"v%d" % place, 0)) for place in range(width)])
        at = float(stored.get(b"at", now))
        if not all(map(isfinite, (*values, at))):
            return None
        return Kept(values, int(stored.get(b"era", 0)), stored.get(b"label", b"").decode(), at)
    except ValueError:
        return None
