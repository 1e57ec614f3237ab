"""The porch: the door is made once, aside, and whoever comes meanwhile waits."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.mcp import lazy_mount
from app.mcp.lazy_mount import LazyMount
from tests.support.fake_gateway import FakeGateway

MCP: Any = {"type": "http", "path": "/mcp"}
NOTHING: Any = None


class Door:
    """A door that says how it is used."""

    said: list[str]

    def __init__(self, *_: Any) -> None:
        self.said.append("made")

    async def __call__(self, *_: Any) -> None:
        self.said.append("asked")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.said.append("begun")
        yield
        self.said.append("ended")


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Lets the loading end."""
    loaded = threading.Event()
    Door.said = []

    def load(name: str) -> Any:
        assert loaded.wait(60)
        return SimpleNamespace(McpEndpoint=Door)

    monkeypatch.setattr(lazy_mount, "import_module", load)
    return loaded


def before(said: list[str]) -> LazyMount:
    """A porch before an application that notes who gets as far."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append(scope["path"])

    gateway = FakeGateway()
    return LazyMount(app, gateway.dispatcher, gateway.state)


async def test_nothing_is_loaded_for_others(loading: threading.Event) -> None:
    """Requests to other paths go by, and a gateway that nobody asks for MCP never has a door."""
    said: list[str] = []
    standing = before(said)
    async with standing.running():
        await standing({"type": "http", "path": "/livez"}, NOTHING, NOTHING)
    assert said == ["/livez"]
    assert Door.said == []
    assert repr(standing) == "<LazyMount /mcp not opened yet>"


async def test_whoever_comes_meanwhile_waits(loading: threading.Event) -> None:
    """Several first requests make one door, which lives until the application ends; a caller that leaves harms none."""
    standing = before([])
    async with standing.running():
        calls = [asyncio.create_task(standing(MCP, NOTHING, NOTHING)) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        loading.set()
        await asyncio.gather(*calls[1:])
        assert Door.said == ["made", "begun", "asked", "asked"]
    assert Door.said[-1] == "ended"
    assert calls[0].cancelled()


async def test_an_end_amid_the_loading_is_an_end(loading: threading.Event) -> None:
    """The application waits for what is being loaded, and nothing is left behind."""
    standing = before([])
    async with standing.running():
        call = asyncio.create_task(standing(MCP, NOTHING, NOTHING))
        await asyncio.sleep(0)
        loading.set()
    await asyncio.wait([call])
    assert standing._life is not None
    assert standing._life.done()


async def test_what_cannot_be_loaded_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is there and broken fails the request, not the gateway."""

    def load(name: str) -> Any:
        raise ImportError("broken")

    monkeypatch.setattr(lazy_mount, "import_module", load)
    standing = before([])
    async with standing.running():
        for _ in range(2):
            with pytest.raises(ImportError, match="broken"):
                await standing(MCP, NOTHING, NOTHING)
