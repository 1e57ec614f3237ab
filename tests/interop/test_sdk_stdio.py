"""A server of the published Python SDK as a stdio engine: handshake, retrieve, concurrent calls, shutdown, restart."""

import asyncio
import sys
import textwrap

import pytest

from app.protocol.advertisement import read_advertisement
from app.protocol.errors import Refused
from tests.support.running_gateway import until
from tests.support.stdio_engine import StillClock, on_both_loops, opened

SERVER = textwrap.dedent(
    """
    import rcp

    server = rcp.Server()
    server.set_info("sdk-peer", "2.1")
    server.set_conformance("L0")
    server.advertise("retrieve", {"maxK": 50, "modes": ["sparse"]})

    @server.on("retrieve")
    def retrieve(params):
        hits = [{"id": f"{params['query']}-{n}", "score": 1.0 / (n + 1), "text": "x" * 100} for n in range(params["k"])]
        return {"hits": hits, "usage": {"candidates": 50}}

    server.serve_stdio()
    """
)
COMMAND = [sys.executable, "-c", SERVER]
HELLO = {"protocolVersion": 1, "client": {"name": "test", "version": "1"}, "capabilities": {}}


@on_both_loops
async def test_the_handshake_and_a_retrieve() -> None:
    """It wants `initialize` first, advertises, answers, and ends by itself when its stdin does."""
    async with opened(COMMAND) as transport:
        with pytest.raises(Refused) as caught:
            await transport.call("retrieve", {"query": "a", "k": 1})
        assert caught.value.code == -32001
        advertisement = read_advertisement((await transport.call("initialize", HELLO)).result)
        assert advertisement.server == {"name": "sdk-peer", "version": "2.1"}
        assert advertisement.retrieve is not None
        assert advertisement.retrieve.max_k == 50
        reply = await transport.call("retrieve", {"query": "søk", "k": 3})
        assert [hit["id"] for hit in reply.result["hits"]] == ["søk-0", "søk-1", "søk-2"]
        assert (await transport.call("ping", {"nonce": "n"})).result == {"nonce": "n"}
        child = transport._child
    assert child is not None
    assert child.status == 0
    assert transport.stdout_noise == transport.unknown_answers == 0


@on_both_loops
async def test_concurrent_calls_and_errors_and_cancellations() -> None:
    """Pipelined to a server that answers one after the other, each call gets its own answer; a cancel harms nobody."""
    async with opened(COMMAND) as transport:
        await transport.call("initialize", HELLO)
        calls = [asyncio.ensure_future(transport.call("retrieve", {"query": f"q{n}", "k": 20})) for n in range(200)]
        refused = asyncio.ensure_future(transport.call("retrieve", {"query": "q", "k": 0}))
        await asyncio.sleep(0)
        for call in calls[::10]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for n, answer in enumerate(answers):
            if n % 10 == 0:
                assert isinstance(answer, asyncio.CancelledError)
            else:
                assert not isinstance(answer, BaseException)
                assert answer.result["hits"][0]["id"] == f"q{n}-0"
        with pytest.raises(Refused, match="'k' MUST be >= 1"):
            await refused
        assert transport.generation == 1


@on_both_loops
async def test_after_shutdown_a_new_process_wants_a_new_handshake() -> None:
    """`shutdown` is answered and ends the process; the next generation starts uninitialized."""
    clock = StillClock()
    async with opened(COMMAND, clock=clock) as transport:
        await transport.call("initialize", HELLO)
        assert (await transport.call("shutdown", {})).result == {}
        await until(
            lambda: "down (the engine's process exited with status 0; started again in 0.1 s" in repr(transport)
        )
        clock.now += 0.1
        with pytest.raises(Refused, match="-32001"):
            await transport.call("retrieve", {"query": "a", "k": 1})
        assert transport.generation == 2
        await transport.call("initialize", HELLO)
        assert len((await transport.call("retrieve", {"query": "a", "k": 2})).result["hits"]) == 2
