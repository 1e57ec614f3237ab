"""The operator's view of the engines: states and capabilities, never an address or a credential."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from app.api.admin import admin
from app.engines.engine import RemoteEngine
from app.protocol.errors import ConnectFailed
from tests.support.fake_engine import FakeTransport, described, entry_of, never
from tests.support.fake_gateway import http_client, state_of
from tests.support.virtual_time import turns


class Engines:
    """A set of engines over fake wires, as the state holds it."""

    def __init__(self, *engines: RemoteEngine) -> None:
        self.engines = self.asked = engines
        self.groups: dict[str, Sequence[str]] = {}
        self.disabled: Sequence[str] = ()
        self.switched_off: frozenset[str] = frozenset()
        self.version = 0


def engine(engine_id: str, transport: FakeTransport, **wishes: Any) -> RemoteEngine:
    """One engine over a fake wire."""
    return RemoteEngine(entry_of(engine_id, **wishes), transport, lambda changed: None)


async def listed(*engines: RemoteEngine) -> tuple[list[dict[str, Any]], str]:
    """The list as it is answered, and its text."""
    app = FastAPI()
    app.include_router(admin(state_of(Engines(*engines)), {}))
    async with http_client(app) as client:
        response = await client.get("/engines")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return response.json()["engines"], response.text


async def test_engine_before_its_first_handshake() -> None:
    """An engine nobody has met yet is listed with nothing but its id and why."""
    (entry,), _ = await listed(engine("docs", FakeTransport()))
    assert entry == {
        "id": "docs",
        "up": False,
        "version": None,
        "server": None,
        "capabilities": [],
        "latencyMs": None,
        "inFlight": 0,
        "reason": "connect: no handshake yet",
        "waiting": 0,
        "breaker": "closed",
        "retryInMs": None,
    }


async def test_engine_that_is_up() -> None:
    """An engine that is up is listed with what it says of itself, its latency and its calls under way."""
    capabilities = {"retrieve": {}, "citations": {}, "embed": {"dimension": 3}}
    docs = engine("docs", FakeTransport(initialize=described(capabilities, name="Docs"), retrieve=never))
    now = asyncio.get_running_loop().time()
    await docs.check(now + 1)
    asking = asyncio.ensure_future(docs.call("retrieve", {}, now + 60))
    await turns()
    (entry,), _ = await listed(docs)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert entry.pop("latencyMs") >= 0
    assert entry == {
        "id": "docs",
        "up": True,
        "version": "1.0",
        "server": "Docs",
        "capabilities": ["citations", "embed", "retrieve"],
        "inFlight": 1,
        "reason": None,
        "waiting": 0,
        "breaker": "closed",
        "retryInMs": None,
    }


async def test_engine_that_went_down_keeps_what_is_known_of_it() -> None:
    """An engine that is down is listed with its last known advertisement and the reason."""
    docs = engine("docs", FakeTransport(retrieve=ConnectFailed("refused")))
    now = asyncio.get_running_loop().time()
    await docs.handshake(now + 1)
    await asyncio.gather(docs.call("retrieve", {}, now + 1), return_exceptions=True)
    (entry,), _ = await listed(docs)
    assert (entry["up"], entry["version"], entry["reason"]) == (False, "1.0", "connect: refused")
    assert entry["capabilities"] == ["retrieve"]


async def test_order_is_that_of_the_set() -> None:
    """Engines are listed in the order of the living set."""
    entries, _ = await listed(engine("b", FakeTransport()), engine("a", FakeTransport()))
    assert [entry["id"] for entry in entries] == ["b", "a"]


async def test_no_address_and_no_credential_is_shown() -> None:
    """Neither the URL of an engine nor what is in its headers is shown (B102)."""
    secretive = engine(
        "docs",
        FakeTransport(),
        url="https://hidden.example/rcp?key=SECRET",
        headers={"Authorization": "Bearer SECRET"},
    )
    _, text = await listed(secretive)
    assert "SECRET" not in text
    assert "hidden" not in text
