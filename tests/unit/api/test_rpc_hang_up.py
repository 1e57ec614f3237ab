"""What becomes of a request whose caller hangs up, at the RPC endpoint and nowhere else."""

import asyncio
from typing import Any

import pytest

from app.api.disconnects import WATCH_AFTER
from tests.support.fake_gateway import Exchange
from tests.support.rpc_endpoint import ANSWER, PING, ScriptedEndpoint
from tests.support.virtual_time import jumping_loop, turns, virtually


async def answered_late() -> bytes:
    """An answer that takes a second."""
    await asyncio.sleep(1)
    return ANSWER


async def never_answered() -> bytes:
    """No answer, ever."""
    await asyncio.Event().wait()
    return ANSWER


def test_slow_request_is_answered() -> None:
    """A request that takes long is answered like any other while its caller stays, and leaves no task."""

    async def story() -> None:
        answer = await ScriptedEndpoint(answered_late).post(PING)
        assert answer.status == 200
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


@pytest.mark.parametrize("body", [PING, b"[" + PING + b"]"], ids=["message", "batch"])
def test_caller_that_hangs_up_cancels_its_request(body: bytes) -> None:
    """When the caller hangs up its request is cancelled at once, nothing is sent, the server's task goes on (B36)."""

    async def story() -> None:
        endpoint = ScriptedEndpoint(never_answered)
        exchange = Exchange(chunks=(body,))
        serving = asyncio.create_task(exchange.run(endpoint.app))
        await asyncio.sleep(0.2)
        assert not serving.done()
        exchange.hang_up.set()
        await turns()
        assert serving.done()
        assert not serving.cancelled()
        assert endpoint.dispatcher.ended == ["cancelled"]
        assert exchange.sent == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_caller_that_hangs_up_soon_is_noticed_when_watching_begins() -> None:
    """A caller gone before the watch begins is noticed as soon as it does."""

    async def story() -> None:
        loop = jumping_loop()
        started = loop.time()
        endpoint = ScriptedEndpoint(never_answered)
        exchange = Exchange(chunks=(PING,))
        exchange.hang_up.set()
        await exchange.run(endpoint.app)
        assert loop.time() - started == pytest.approx(WATCH_AFTER)
        assert endpoint.dispatcher.ended == ["cancelled"]

    virtually(story())


@pytest.mark.parametrize("chunks", [0, 1])
async def test_caller_that_hangs_up_before_its_body_is_there(chunks: int) -> None:
    """A body that is broken off is nobody's request."""
    endpoint = ScriptedEndpoint()
    sent: list[Any] = []
    events = [{"type": "http.request", "body": b"{", "more_body": True}] * chunks + [{"type": "http.disconnect"}]
    pending = iter(events)

    async def receive() -> Any:
        return next(pending)

    await endpoint.app(Exchange().scope, receive, sent.append)
    assert (sent, endpoint.dispatcher.asked) == ([], [])


def test_server_that_shuts_down_cancels_the_request() -> None:
    """A cancellation that is not the caller's hanging up goes through to the server."""

    async def story() -> None:
        endpoint = ScriptedEndpoint(never_answered)
        serving = asyncio.create_task(Exchange(chunks=(PING,)).run(endpoint.app))
        await asyncio.sleep(0.2)
        serving.cancel()
        await turns()
        assert serving.cancelled()
        assert endpoint.dispatcher.ended == ["cancelled"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(story())


def test_server_that_shuts_down_while_the_caller_hangs_up() -> None:
    """When both happen in one moment the server's wish wins: the cancellation is not swallowed."""

    async def story() -> None:
        async def tidy() -> bytes:
            try:
                await asyncio.Event().wait()
            finally:
                await turns(10)
            return ANSWER

        exchange = Exchange(chunks=(PING,))
        serving = asyncio.create_task(exchange.run(ScriptedEndpoint(tidy).app))
        await asyncio.sleep(0.2)
        exchange.hang_up.set()
        await turns()
        serving.cancel()
        await turns(20)
        assert serving.cancelled()

    virtually(story())


def test_quick_request_is_not_watched() -> None:
    """A request answered before the watch begins costs no task, and its connection is not read from again."""

    async def story() -> None:
        tasks: list[int] = []

        async def quickly() -> bytes:
            await asyncio.sleep(WATCH_AFTER / 2)
            tasks.append(len(asyncio.all_tasks()))
            return ANSWER

        exchange = Exchange(chunks=(PING,))
        await exchange.run(ScriptedEndpoint(quickly).app)
        await asyncio.sleep(1)
        assert tasks == [1]
        assert exchange.received == 1

    virtually(story())
