"""Calls with a key, carried out once: what counts as the same call, and what is forgotten."""

import asyncio
from typing import Any

import pytest

from app.federation.calls import MethodCall
from app.federation.idempotency import Idempotency
from app.protocol.errors import BackendUnavailable, Conflict, InvalidParams
from app.protocol.retrieve_params import CallMeta
from app.settings.state import StateSettings
from tests.support.plain_store import PlainStore

Json = dict[str, Any]


class Work:
    """Counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self) -> Json:
        self.done += 1
        return {"deleted": self.done}


def called(key: Any, params: Json | None = None, method: str = "index/delete") -> MethodCall:
    """A call with this key and ten seconds left."""
    now = asyncio.get_running_loop().time()
    meta = {} if key is None else {"idempotencyKey": key}
    return MethodCall(
        {"ids": ["x"]} if params is None else params, CallMeta(), now, now + 10, "r", 3, meta, method=method
    )


async def test_a_key_is_answered_once_and_for_all() -> None:
    """The same call again is answered the same, however its keys are ordered and whatever else `_meta` says."""
    idempotency, work = Idempotency.from_settings(StateSettings()), Work()
    first = await idempotency.once(called("k", {"ids": ["x"], "a": {"b": 1, "c": 2}, "_meta": {"t": 1}}), work)
    again = await idempotency.once(called("k", {"a": {"c": 2, "b": 1}, "ids": ["x"]}), work)
    assert (first, again, work.done) == ({"deleted": 1}, {"deleted": 1}, 1)


async def test_without_a_key_nothing_is_remembered() -> None:
    """Each call is carried out."""
    idempotency, work = Idempotency.from_settings(StateSettings()), Work()
    assert [(await idempotency.once(called(None), work))["deleted"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("params", "method"), [({"ids": ["y"]}, "index/delete"), ({"ids": ["x"]}, "index/add"), ({}, "index/delete")]
)
async def test_a_key_of_another_call_is_a_conflict(params: Json, method: str) -> None:
    """Other params or another method under the same key are -32016, and are not carried out."""
    idempotency, work = Idempotency.from_settings(StateSettings()), Work()
    await idempotency.once(called("k"), work)
    with pytest.raises(Conflict) as caught:
        await idempotency.once(called("k", params, method), work)
    assert caught.value.data == {"field": "_meta.idempotencyKey", "retryable": False}
    assert work.done == 1


async def test_another_endpoint_is_another_place() -> None:
    """The key of a call to one engine is not that of a call to the federation."""
    idempotency, work = Idempotency.from_settings(StateSettings()), Work()
    await idempotency.once(called("k"), work)
    await idempotency.once(called("k"), work, "engine")
    assert work.done == 2


@pytest.mark.parametrize("fault", [BackendUnavailable("down"), asyncio.CancelledError()])
async def test_what_failed_may_be_tried_again(fault: BaseException) -> None:
    """A call that failed, or was called off, leaves nothing behind."""
    idempotency, work = Idempotency.from_settings(StateSettings()), Work()

    async def fail() -> Json:
        raise fault

    with pytest.raises(type(fault)):
        await idempotency.once(called("k"), fail)
    assert await idempotency.once(called("k"), work) == {"deleted": 1}


@pytest.mark.parametrize("key", ["", 7, ["k"], True])
async def test_a_key_is_a_text(key: Any) -> None:
    """Anything else is a fault of the caller's."""
    with pytest.raises(InvalidParams):
        await Idempotency.from_settings(StateSettings()).once(called(key), Work())


async def test_results_survive_a_store_outside_the_process() -> None:
    """What is kept is plain data; a claim ends soon after its call's deadline, a result after the time that is set."""
    store, work = PlainStore(), Work()
    idempotency = Idempotency(store, 86_400)
    seen: list[float] = []

    async def looking() -> Json:
        seen.extend(store.seconds.values())
        return await work()

    assert await idempotency.once(called("k"), looking) == await idempotency.once(called("k"), work)
    assert 10 < seen[0] <= 15.1
    assert list(store.seconds.values()) == [86_400]
    assert "k" not in [key.partition(":")[2] for key in store.texts]
    assert repr(idempotency).startswith("<Idempotency for 86400 s in <")


async def test_results_are_bounded() -> None:
    """Of more keys than are kept the least recently used is forgotten, and its call carried out again."""
    idempotency, work = Idempotency.from_settings(StateSettings(max_idempotency_keys=2)), Work()
    for key in ("a", "b", "c", "a"):
        await idempotency.once(called(key), work)
    assert work.done == 4
