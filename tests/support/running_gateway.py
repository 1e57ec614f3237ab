"""A whole gateway for tests, built by the composition root and called through its ASGI application.

Engines are real sockets; only the gateway's own front socket is left out, which keeps the tests quick.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from app.api.gateway_state import GatewayState
from app.main import build_app, build_state
from app.settings.schema import GatewaySettings, Registry
from app.settings.sources import LoadedRegistry
from app.settings.tenants_file import tenants_in
from tests.support.scripted_engine import ScriptedEngine

Json = dict[str, Any]

PATIENCE = 40.0
"""Seconds before a test is called hung; never waited for when all is well."""

START_SECONDS = 90.0
"""The same for a program that is being started, which reads and compiles much before it does anything."""

LEISURE_MS = 20_000
"""What an engine gets to answer unless its test is about lateness: a machine that stands still is no fault of it."""


class RunningGateway:
    """One gateway under test."""

    def __init__(self, state: GatewayState, client: httpx2.AsyncClient, url: str = "http://gateway") -> None:
        self.state = state
        self.client = client
        self.url = url
        self._ids = 0

    async def post(self, body: Any, path: str = "/rcp", headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Send a body, JSON or bytes, as it is."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, headers=dict(headers or {}))

    async def call(
        self, method: str, params: Json | None = None, *, base: str = "/rcp", headers: Mapping[str, str] | None = None
    ) -> Json:
        """The whole JSON-RPC response to one request at the endpoint `base`."""
        self._ids += 1
        call_id = self._ids
        message = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params or {}}
        response = await self.post(message, f"{base}/{method}", headers)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        assert answer["id"] == call_id
        return answer

    async def result(self, method: str, params: Json | None = None, **where: Any) -> Json:
        """The result of one request that must succeed."""
        answer = await self.call(method, params, **where)
        assert "result" in answer, answer
        result: Json = answer["result"]
        return result

    async def error(self, method: str, params: Json | None = None, **where: Any) -> Json:
        """The error of one request that must fail."""
        answer = await self.call(method, params, **where)
        assert "error" in answer, answer
        error: Json = answer["error"]
        return error

    async def retrieve(self, query: str = "q", **params: Any) -> Json:
        """The result of one `retrieve`."""
        return await self.result("retrieve", {"query": query, **params})

    async def metric(self, name: str, **labels: str) -> float:
        """The value of one series right now."""
        value = self.state.metrics.registry.get_sample_value(name, labels)
        assert value is not None, f"no series {name} {labels}"
        return value


def http_client(url: str) -> httpx2.AsyncClient:
    """A client of a gateway that listens."""
    return httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE)


def entry(id: str, engine: ScriptedEngine | str, **more: Any) -> Json:
    """A registry entry for a scripted engine or a URL."""
    url = engine if isinstance(engine, str) else engine.url
    return {"id": id, "transport": "http", "url": url, "timeoutMs": LEISURE_MS, **more}


def made_state(
    entries: list[Json], settings: Json | None = None, fingerprint: str = "0" * 8, tenants: Json | None = None
) -> GatewayState:
    """A gateway put together from JSON, as the files would; with `tenants`, callers are known by keys."""
    registry = Registry.model_validate_json(json.dumps({"engines": entries}))
    settings = settings or {}
    if tenants is not None:
        settings = {"auth": {"mode": ["keys"], "tenants_file": "tenants.yaml"}, **settings}
    declared = None if tenants is None else tenants_in("tenants.yaml", {"tenants": tenants})
    return build_state(LoadedRegistry(registry, fingerprint), GatewaySettings.model_validate(settings), declared)


@asynccontextmanager
async def running(
    entries: list[Json],
    settings: Json | None = None,
    *,
    reach: bool = True,
    fingerprint: str = "0" * 8,
    tenants: Json | None = None,
    client: tuple[str, int] = ("127.0.0.1", 123),
) -> AsyncIterator[RunningGateway]:
    """A started gateway; with `reach` it is handed out once every enabled engine has been shaken hands with.

    `client` is the address that its callers come from.
    """
    state = made_state(entries, settings, fingerprint, tenants)
    app: Any = build_app(state)
    async with (
        lifespan(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, client=client), base_url="http://gateway") as http,
    ):
        if reach:
            await until(lambda: all(engine.advertisement is not None for engine in state.engines.engines))
        yield RunningGateway(state, http)


@asynccontextmanager
async def lifespan(app: Callable[..., Any]) -> AsyncIterator[None]:
    """Run an ASGI application's start-up and shutdown around a block."""
    to_app: asyncio.Queue[Json] = asyncio.Queue()
    from_app: asyncio.Queue[Json] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
        await task


async def given_up(call: Coroutine[Any, Any, Any], once: Callable[[], bool]) -> None:
    """Begin a call, and give it up once `once` holds, as a caller does whose time is over."""
    task = asyncio.create_task(call)
    await until(once)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until `condition` holds; fail when it does not within `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
