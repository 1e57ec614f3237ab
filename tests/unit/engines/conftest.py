"""Fixtures for the tests of transports: the kinds, raw peers to meet and transports to them, all closed at the end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.engines.transport import Transport
from tests.support.raw_peer import RawPeer, Script
from tests.support.transport_kinds import HTTP_KINDS, KINDS, HttpKind, Kind, Listen, Reach


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of transport in turn."""
    return request.param


@pytest.fixture(params=HTTP_KINDS, ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest) -> HttpKind:
    """Every HTTP client in turn."""
    return request.param


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is to be closed at the end of the test."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def listen(stack: AsyncExitStack) -> Listen:
    """Start a raw peer."""

    async def listen(script: Script, **kwargs: Any) -> RawPeer:
        return await stack.enter_async_context(RawPeer(script, **kwargs))

    return listen


@pytest.fixture
def reach(stack: AsyncExitStack, client: HttpKind) -> Reach:
    """A transport of the client in turn to a raw peer or a URL."""

    def reach(peer: RawPeer | str, settings: dict[str, Any] | None = None, **kwargs: Any) -> Transport:
        transport = client.to(peer if isinstance(peer, str) else peer.url, settings, **kwargs)
        stack.push_async_callback(transport.close)
        return transport

    return reach
