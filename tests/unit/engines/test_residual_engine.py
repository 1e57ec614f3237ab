"""A gateway asked for some of its engines only."""

from app.engines.discovery import ResidualEngine
from tests.support.fake_engine import FakeTransport
from tests.support.lone_engine import LoneEngine


async def test_params_are_narrowed_and_nothing_else() -> None:
    """Each call is restricted, beside whatever else it tells the gateway; the caller's params stay as they were."""
    transport = FakeTransport(retrieve={"hits": []})
    lone = LoneEngine(transport, weight=3.0)
    rest = ResidualEngine(lone.engine, ("y", "z"))
    sent = {"query": "q", "x-gateway": {"identity": "uri", "engines": ["w"]}}
    await rest.call("retrieve", sent, 1e9, idempotent=False)
    await rest.call("retrieve", {"x-gateway": None}, 1e9)
    assert [params for _, params in transport.calls] == [
        {"query": "q", "x-gateway": {"identity": "uri", "engines": ["y", "z"]}},
        {"x-gateway": {"engines": ["y", "z"]}},
    ]
    assert transport.idempotent == [False, True]
    assert sent["x-gateway"] == {"identity": "uri", "engines": ["w"]}


async def test_it_is_its_gateway_otherwise() -> None:
    """Identity, wishes, advertisement and state are the gateway's."""
    lone = LoneEngine(FakeTransport())
    rest = ResidualEngine(lone.engine, ("y",))
    assert (rest.id, rest.entry) == (lone.engine.id, lone.engine.entry)
    assert rest.down_reason == "connect: no handshake yet"
    await lone.shake()
    assert rest.advertisement is lone.engine.advertisement is not None
    assert rest.down_reason is None
    assert repr(rest).startswith("<ResidualEngine y of <RemoteEngine docs")
