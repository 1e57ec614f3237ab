"""Several calls of one request at the same time, in a bounded number; their answers in the order of the calls.

The first failure ends them all. It refuses to know what is called.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Answer = TypeVar("Answer")


async def side_by_side(calls: Sequence[Callable[[], Awaitable[Answer]]], at_once: int) -> list[Answer]:
    """The answers in order. Raises what the first call to fail raised, once all others have ended."""
    if len(calls) == 1:
        return [await calls[0]()]
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for place, call in waiting:
            answers[place] = await call()

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(calls)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [answers[place] for place in range(len(calls))]
