"""MCP of a real gateway process, on its own loop and server: served by default, stopped, and cut off."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Starter
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.mcp_peer import ACCEPT, MODERN, calling, modern_headers
from tests.support.running_gateway import Json, entry, until
from tests.support.scripted_engine import hang, hits

SETTINGS: Json = {"server": {"drain_seconds": 0, "grace_seconds": 5}}


async def search(gateway: GatewayProcess, version: str) -> Any:
    """The HTTP answer to one `search` in this version."""
    message = calling("search", {"query": "q"})
    headers = modern_headers(message)
    if version != MODERN:
        del message["params"]["_meta"]
        headers = {"accept": ACCEPT, "content-type": "application/json", "mcp-protocol-version": version}
    return await gateway.client.post(gateway.url("/mcp"), json=message, headers=headers)


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_a_call_under_way_is_finished(engines: Starter, tmp_path: Path, version: str) -> None:
    """If it is stopped during a tool call, the gateway still answers the call in full; exit code 0."""
    engine, free = await engines(), asyncio.Event()

    async def held(asked: Any) -> Json:
        await free.wait()
        return {"hits": hits("late")}

    engine.answers["retrieve"] = held
    async with gateway_process(tmp_path, [entry("e", engine, timeoutMs=60_000)], SETTINGS) as gateway:
        call = asyncio.create_task(search(gateway, version))
        await until(lambda: len(engine.requests()) == 1)
        gateway.signal(signal.SIGTERM)
        await gateway.until_told("finishing")
        free.set()
        answer = await call
        assert await gateway.ended() == 0
    assert answer.status_code == 200
    assert [found["title"] for found in answer.json()["result"]["structuredContent"]["results"]] == ["text of late"]
    assert "Traceback" not in gateway.text


async def test_a_call_that_does_not_end_is_cut_off(engines: Starter, tmp_path: Path) -> None:
    """A client that still waits after the grace period gets 503, and the log has no traceback."""
    engine = await engines()
    engine.answers["retrieve"] = hang
    settings = {"server": {"drain_seconds": 0, "grace_seconds": 0.3}, "retrieve": {"deadline_ms": 60_000}}
    async with gateway_process(tmp_path, [entry("e", engine, timeoutMs=60_000)], settings) as gateway:
        call = asyncio.create_task(search(gateway, MODERN))
        await until(lambda: len(engine.requests()) == 1)
        gateway.signal(signal.SIGTERM)
        answer = await call
        await gateway.ended()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, -32010)
    assert "Traceback" not in gateway.text
