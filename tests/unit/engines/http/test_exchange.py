"""What waits for an answer: it ends once, tells at once, and can be awaited."""

import asyncio

import pytest

from app.engines.http.exchange import HttpExchange
from app.protocol.errors import ConnectFailed


def test_who_listens_is_told_at_once() -> None:
    """In the moment the answer is there, without a loop, and never again."""
    pending, heard = HttpExchange(), []
    pending.add_done_callback(heard.append)
    pending.set_result(b"body")
    assert heard == [pending]
    assert (pending.done(), pending.cancelled(), pending.exception()) == (True, False, None)
    assert pending.result() == b"body"


async def test_who_comes_late_is_told_soon() -> None:
    """Never while it is still adding itself."""
    pending, heard = HttpExchange(), []
    pending.set_result(b"")
    pending.add_done_callback(heard.append)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [pending]


def test_a_fault_is_raised() -> None:
    """There is no answer, and why."""
    pending, fault = HttpExchange(), ConnectFailed("gone")
    pending.set_exception(fault)
    assert pending.exception() is fault
    with pytest.raises(ConnectFailed, match="gone"):
        pending.result()


def test_nobody_is_told_of_what_nobody_wants() -> None:
    """After a cancellation it is done, tells nobody, and has no answer; what has ended stays as it ended."""
    pending, heard = HttpExchange(), []
    pending.add_done_callback(heard.append)
    pending.cancel()
    assert (pending.done(), pending.cancelled(), pending.exception(), heard) == (True, True, None, [])
    with pytest.raises(asyncio.CancelledError):
        pending.result()
    ended = HttpExchange()
    ended.set_result(b"body")
    ended.cancel()
    assert not ended.cancelled()


async def test_a_task_can_wait_for_it() -> None:
    """Before it ends and after, for an answer and for a fault."""
    pending = HttpExchange()
    asyncio.get_running_loop().call_soon(pending.set_result, b"body")
    assert await pending == b"body"
    assert await pending == b"body"
    failed = HttpExchange()
    asyncio.get_running_loop().call_soon(failed.set_exception, ConnectFailed("gone"))
    with pytest.raises(ConnectFailed):
        await failed


async def test_a_task_that_gives_up() -> None:
    """Its waiter may end after it without anybody being hurt."""
    pending = HttpExchange()

    async def wait() -> None:
        await pending

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    pending.set_result(b"body")


def test_a_pending_can_be_looked_at() -> None:
    """In an incident: how it stands."""
    pending = HttpExchange()
    assert repr(pending) == "<HttpExchange pending>"
    pending.set_result(b"")
    assert repr(pending) == "<HttpExchange done>"
    cancelled, failed = HttpExchange(), HttpExchange()
    cancelled.cancel()
    failed.set_exception(ConnectFailed("gone"))
    assert (repr(cancelled), repr(failed)) == ("<HttpExchange cancelled>", "<HttpExchange failed>")
