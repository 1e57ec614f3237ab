"""Several calls at the same time: in order, bounded, and all over when the first fails or the caller leaves."""

import asyncio
from functools import partial
from typing import Any

import pytest

from app.federation.forward import side_by_side


async def echo(value: Any) -> Any:
    """Answer at the next turn."""
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_answers_come_in_the_order_of_the_calls(at_once: int) -> None:
    """However many run at once."""
    calls = [partial(echo, number) for number in range(10)]
    assert await side_by_side(calls, at_once) == list(range(10))


async def test_one_failure_ends_all() -> None:
    """What it raised is raised, once the others are gone; those that had not begun never do."""
    begun: list[str] = []
    ended: list[str] = []

    async def hang(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        await side_by_side([partial(hang, "a"), fail, partial(hang, "b"), partial(hang, "c")], 3)
    assert begun == ended == ["a", "b"]


async def test_whoever_leaves_ends_all() -> None:
    """Cancelling the whole cancels each call and waits for it."""
    ended: list[int] = []

    async def hang(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    task = asyncio.create_task(side_by_side([partial(hang, number) for number in range(3)], 3))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}
