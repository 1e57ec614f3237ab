"""Sums that processes add to, in a file and in Redis: the same contract for both."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.protocol.errors import StateUnreachable
from app.state.redis_sums import SharedSums
from app.state.sums import HALF_LIFE_SECONDS, FileSums, Kept, Sums, SumsUpdate
from tests.support.shared_state import Watched, linked, unique

NOW = 1_700_000_000.0


@pytest.fixture(params=["file", "redis"])
async def sums(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sums]:
    """Each kind of place."""
    if request.param == "file":
        yield FileSums(tmp_path / "deep" / "sums.json")
        return
    prefix = unique()
    async with linked(request.getfixturevalue("redis_url"), Watched()) as link:
        yield SharedSums(link, lambda: prefix)


def adding(*values: float, **more: Any) -> SumsUpdate:
    """Two values that fade, and one that does not."""
    return SumsUpdate("a", values, **{"era": 0, "fading": 2, "most": 100.0, "whole": values, **more})


async def add(sums: Sums, addition: SumsUpdate, now: float = NOW) -> Kept:
    """One exchange."""
    return (await sums.exchange([addition], now))["a"]


async def test_what_processes_add_is_added_up(sums: Sums) -> None:
    """In any order, and from several at once."""
    await asyncio.gather(*(add(sums, adding(1.5, 2.0, float(turn))) for turn in range(5)))
    kept = await add(sums, adding(0.0, 0.0, 0.0))
    assert kept.values == pytest.approx((7.5, 10.0, 10.0))
    assert (kept.era, kept.at) == (0, NOW)


async def test_a_new_beginning_drops_what_is_of_the_era_before(sums: Sums) -> None:
    """A process that has not noticed yet adds nothing; it reads the new era."""
    await add(sums, adding(5.0, 5.0, 5.0, label="one"))
    begun = await add(sums, adding(0.0, 0.0, 1.0, reset=True, label="two"))
    assert (begun.values, begun.era, begun.label) == ((0.0, 0.0, 1.0), 1, "two")
    late = await add(sums, adding(9.0, 9.0, 9.0, label="one"))
    assert (late.values, late.era) == ((0.0, 0.0, 1.0), 1)
    assert (await add(sums, adding(1.0, 0.0, 0.0, era=1))).values == (1.0, 0.0, 1.0)


async def test_time_and_a_bound_scale_what_fades(sums: Sums) -> None:
    """A half-life later half is left of what fades; too much evidence is scaled to the bound."""
    await add(sums, adding(8.0, 8.0, 8.0))
    later = await add(sums, adding(0.0, 0.0, 0.0), NOW + HALF_LIFE_SECONDS)
    assert later.values == pytest.approx((4.0, 4.0, 8.0))
    assert later.at == NOW + HALF_LIFE_SECONDS
    full = await add(sums, adding(96.0, 196.0, 0.0), NOW + HALF_LIFE_SECONDS)
    assert full.values == pytest.approx((50.0, 100.0, 8.0))


async def test_what_was_lost_is_written_again(sums: Sums) -> None:
    """Where nothing is kept any more, the process that knows something begins with all it knows."""
    assert (await sums.exchange([adding(0.0, 0.0, 0.0)], NOW)).get("a") in (None, Kept((0.0, 0.0, 0.0), 0, "", NOW))
    whole = SumsUpdate("b", (1.0, 0.0, 0.0), 3, whole=(11.0, 5.0, 2.0))
    kept = (await sums.exchange([whole], NOW))["b"]
    assert (kept.values, kept.era) == ((11.0, 5.0, 2.0), 3)


async def test_an_unreadable_file_is_put_aside(tmp_path: Path) -> None:
    """It stays under another name, and learning goes on."""
    path = tmp_path / "sums.json"
    for text in ("{", "[]", '{"sums": {"a": {"values": [1e999], "era": 0, "label": "", "at": 0}}}'):
        path.write_text(text, encoding="utf-8")
        assert (await add(FileSums(path), adding(1.0, 1.0, 1.0))).values == (1.0, 1.0, 1.0)
        assert (tmp_path / "sums.json.unreadable").read_text(encoding="utf-8") == text


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The exchange fails as that with a Redis which is away."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StateUnreachable, match="file/sums"):
        await add(FileSums(tmp_path / "file" / "sums.json"), adding(1.0, 1.0, 1.0))


async def test_foreign_keys_in_redis_do_no_harm(redis_url: str) -> None:
    """A key of another type, or a hash of other things, is replaced; the link stays up."""
    prefix = unique()
    async with linked(redis_url, Watched()) as link:
        sums = SharedSums(link, lambda: prefix)
        key = f"{prefix}:calibration:a"
        await link.ask(lambda redis: redis.set(key, b"text"))
        for _ in range(2):
            kept = await sums.exchange([adding(1.0, 1.0, 1.0)], NOW)
            assert link.up
        assert all(math.isfinite(value) for one in kept.values() for value in one.values)
        await link.ask(lambda redis: redis.hset(key, mapping={"v0": "x", "era": 0, "width": 3}))
        for _ in range(2):
            kept = await sums.exchange([adding(1.0, 1.0, 1.0)], NOW)
            assert link.up
        assert kept["a"].values == (1.0, 1.0, 1.0)
