"""Ending one's own task for one known reason: told apart from every other, and leaving no trace."""

import asyncio

import pytest

from app.resilience.cancel_scope import CancelScope
from tests.support.virtual_time import turns, virtually


def test_only_a_task_can_be_called_off() -> None:
    """Outside a task there is nothing to end."""

    async def outside() -> None:
        failed: list[BaseException] = []

        def make() -> None:
            try:
                CancelScope()
            except AssertionError as fault:
                failed.append(fault)

        asyncio.get_running_loop().call_soon(make)
        await turns()
        assert len(failed) == 1

    virtually(outside())


def test_two_reasons_are_told_apart() -> None:
    """Of two call-offs in one task the one that struck is the cause, and the other is not."""

    async def story() -> None:
        one, other = CancelScope(), CancelScope()
        asyncio.get_running_loop().call_soon(one.expire)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(9)
        assert (other.is_the_cause(), one.is_the_cause()) == (False, True)
        other.end()
        one.end()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    virtually(story())


def test_striking_twice_is_striking_once() -> None:
    """A second strike changes nothing, whatever came of the first."""

    async def story() -> None:
        calloff = CancelScope()
        assert repr(calloff) == "<CancelScope pending>"
        calloff.expire()
        calloff.expire()
        assert repr(calloff) == "<CancelScope come>"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(9)
        assert calloff.is_the_cause()
        calloff.end()
        await asyncio.sleep(1)

    virtually(story())
