"""A gateway behind a front socket whose address is known before it starts, so that it can list where engines are."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from app.main import build_app
from app.server.http_protocol import HttpProtocol
from app.server.lifecycle import GatewayServer
from tests.support.running_gateway import PATIENCE, Json, RunningGateway, http_client, made_state, until


@asynccontextmanager
async def mounted(
    entries: list[Json], settings: Json | None = None, *, fingerprint: str = "0" * 8, port: int = 0, reach: bool = True
) -> AsyncIterator[RunningGateway]:
    """A gateway whose `server.public_url` is its own address on loopback, `gateway.url`."""
    listener = socket.create_server(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    wishes = dict(settings or {})
    wishes["server"] = {"public_url": url, **wishes.get("server", {})}
    state = made_state(entries, wishes, fingerprint)
    options = uvicorn.Config(
        build_app(state), http=HttpProtocol, lifespan="on", ws="none", log_config=None, access_log=False
    )
    server = GatewayServer(options, state)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done())
        if reach:
            await until(lambda: all(engine.advertisement is not None for engine in state.engines.engines))
        async with http_client(url) as client:
            yield RunningGateway(state, client, url)
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE)
        listener.close()
