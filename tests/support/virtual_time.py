"""An event loop whose clock jumps: waiting costs nothing, and every duration a test sees is exact.

For code that waits by the loop's own clock (back-off, deadlines, watches). It refuses to wait for the outside world.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class _Jumping(selectors.DefaultSelector):
    """Instead of sleeping until the next timer it moves the clock there."""

    loop: "JumpingLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits and no timer is set: this test would hang")
            self.loop.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own, which begins at `now` seconds; `faults` keeps what nobody caught."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.faults: list[dict[str, Any]] = []
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)
        self.set_exception_handler(lambda loop, context: self.faults.append(context))

    def time(self) -> float:
        return self.now


def virtually(work: Coroutine[Any, Any, Answer], *, faults: bool = False) -> Answer:
    """Run `work` on a JumpingLoop; with `faults` it may leave things behind for the loop's exception handler."""
    loop = JumpingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        answer = runner.run(work)
    assert faults or not loop.faults, loop.faults
    return answer


def jumping_loop() -> JumpingLoop:
    """The loop of the running test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    return loop


async def turns(count: int = 5) -> None:
    """Let every task that can go on do so, `count` times; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
