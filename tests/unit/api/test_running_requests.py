"""Who can be called off by whom, and what the one that is called off sees."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from app.api.running_requests import RunningRequest, RunningRequests
from tests.support.virtual_time import turns


class Requests:
    """Requests that wait until they are called off, and say how they ended."""

    def __init__(self) -> None:
        self.in_flight = RunningRequests()
        self.ended: list[Any] = []

    async def wait(self, session: str, message_id: Any) -> str:
        running = self.in_flight.enter(session, message_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not running.is_the_cause():
                raise
            self.ended.append(message_id)
        finally:
            self.in_flight.leave(running)
        await asyncio.sleep(0)  # the task is no longer being cancelled
        return "answered"

    async def begin(self, session: str, *ids: Any) -> "list[asyncio.Task[str]]":
        tasks = [asyncio.create_task(self.wait(session, message_id)) for message_id in ids]
        await turns(2)
        return tasks


async def test_request_is_called_off_and_goes_on_to_be_answered() -> None:
    """The task hears of it once and can still answer; the table is empty afterwards."""
    requests = Requests()
    (task,) = await requests.begin("s", 1)
    assert repr(requests.in_flight) == "<RunningRequests 1 requests of 1 sessions>"
    assert requests.in_flight.cancel("s", 1) == 1
    assert requests.in_flight.cancel("s", 1) == 1
    assert await task == "answered"
    assert len(requests.in_flight) == 0
    assert requests.in_flight.cancel("s", 1) == 0


@pytest.mark.parametrize(("session", "message_id"), [("other", 1), ("", 1), ("s", 2), ("s", "1"), ("s", 1.5)])
async def test_others_are_left_alone(session: str, message_id: Any) -> None:
    """Another session's request, or another id, also of another type, is not called off."""
    requests = Requests()
    (task,) = await requests.begin("s", 1)
    assert requests.in_flight.cancel(session, message_id) == 0
    await turns()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(requests.in_flight) == 0


async def test_only_the_one_that_was_named() -> None:
    """Of many requests of a session the named one ends."""
    requests = Requests()
    tasks = await requests.begin("s", *range(5))
    requests.in_flight.cancel("s", 3)
    assert await tasks[3] == "answered"
    assert requests.ended == [3]
    assert len(requests.in_flight) == 4
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_id_that_is_used_twice() -> None:
    """Two requests of one session with one id are both called off, and each leaves for itself."""
    requests = Requests()
    tasks = await requests.begin("s", 1, 1, 1)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    assert requests.in_flight.cancel("s", 1) == 2
    assert await asyncio.gather(*tasks[1:]) == ["answered", "answered"]
    assert len(requests.in_flight) == 0


@pytest.mark.parametrize("first", ["called off", "hung up"])
async def test_caller_that_hangs_up_as_well_is_not_answered(first: str) -> None:
    """Called off and cancelled from outside in one moment: the cancellation goes through."""
    requests = Requests()
    (task,) = await requests.begin("s", 1)
    if first == "called off":
        requests.in_flight.cancel("s", 1)
        task.cancel()
    else:
        task.cancel()
        requests.in_flight.cancel("s", 1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (requests.ended, len(requests.in_flight)) == ([], 0)


async def test_cancellation_that_was_swallowed_does_no_later_harm() -> None:
    """A request in which something swallowed the cancellation leaves its task uncancelled."""
    in_flight = RunningRequests()
    running: list[RunningRequest] = []

    async def swallowing() -> int:
        running.append(in_flight.enter("s", 1))
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        in_flight.leave(running[0])
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.create_task(swallowing())
    await turns(1)
    running[0].expire()
    assert repr(running[0]) == "<RunningRequest 1 cancelled>"
    assert await task == 0
