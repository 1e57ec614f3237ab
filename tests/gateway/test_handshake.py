"""`server.handshake: required`: who has a session over HTTP, what is refused without one, and when it is over."""

from pathlib import Path
from typing import Any

import pytest

from app.main import serve
from app.settings.field_errors import SettingsError
from tests.gateway.conftest import Starter
from tests.support.running_gateway import Json, RunningGateway, entry, running

REQUIRED: Json = {"server": {"handshake": "required"}}


def code(answer: Json) -> int | None:
    """The code of an answer, None if it is a result."""
    return answer["error"]["code"] if "error" in answer else None


async def initialize(gateway: RunningGateway, **more: Any) -> Json:
    """The answer to a handshake."""
    return await gateway.call("initialize", {"protocolVersion": 1, "client": {"name": "t", "version": "1"}}, **more)


async def token_of(gateway: RunningGateway, **more: Any) -> str:
    """The token of a new session."""
    token = (await initialize(gateway, **more))["result"]["_meta"]["session"]
    assert isinstance(token, str)
    return token


@pytest.mark.parametrize("method", ["retrieve", "catalog/list", "embed", "x-acme/rank", "nonsense"])
async def test_nothing_but_a_few_methods_before_the_handshake(engines: Starter, method: str) -> None:
    """Before `initialize` everything is -32001, known or not, offered or not, well-formed params or not (RCP §13)."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        assert code(await gateway.call(method, {"k": "many"})) == -32001
        for early in ("info", "ping", "shutdown"):
            assert code(await gateway.call(early)) is None
        assert code(await initialize(gateway)) is None
        assert code(await gateway.call(method, {"query": "q"})) != -32001


async def test_malformed_comes_before_the_handshake_rule(engines: Starter) -> None:
    """What is no request is -32600 and -32700 also without a session, and a notification is never answered."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        answer = (await gateway.post({"jsonrpc": "2.0", "id": None, "method": "retrieve"})).json()
        assert (code(answer), answer["id"]) == (-32600, None)
        assert code((await gateway.post(b"{")).json()) == -32700
        assert (await gateway.post({"jsonrpc": "2.0", "method": "retrieve"})).status_code == 204
        assert (await gateway.post({"jsonrpc": "2.0", "method": "initialize"})).status_code == 204
        assert code(await gateway.call("retrieve", {"query": "q"})) == -32001


async def test_a_second_initialize_is_refused(engines: Starter) -> None:
    """Once initialized the session of a token cannot be negotiated again (-32600)."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        token = await token_of(gateway)
        headers = {"RCP-Session": token}
        assert code(await initialize(gateway, headers=headers)) == -32600
        assert code(await gateway.call("initialize", {"protocolVersion": 0}, headers=headers)) == -32600
        assert code(await gateway.call("retrieve", {"query": "q"}, headers=headers)) is None


async def test_clients_at_one_address_do_not_lock_each_other_out(engines: Starter) -> None:
    """SDK clients cannot send a token: each may initialize, and one that shuts down does not end it for the others."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        for _ in range(3):
            assert code(await initialize(gateway)) is None
        for _ in range(2):
            assert code(await gateway.call("shutdown")) is None
            assert code(await gateway.call("retrieve", {"query": "q"})) is None
        assert code(await gateway.call("shutdown")) is None
        assert code(await gateway.call("retrieve", {"query": "q"})) == -32001


async def test_a_failed_negotiation_initializes_nothing(engines: Starter) -> None:
    """After -32002, or -32602 for a version that is none, the session is as before; then it can still be begun."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        for version, refused in ((0, -32002), ("1", -32602)):
            assert code(await gateway.call("initialize", {"protocolVersion": version})) == refused
            assert code(await gateway.call("retrieve", {"query": "q"})) == -32001
        assert code(await initialize(gateway)) is None
        assert code(await gateway.call("retrieve", {"query": "q"})) is None


async def test_a_token_is_a_session_of_its_own(engines: Starter) -> None:
    """The token holds from any address; a forged one gives nothing that none would not give."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        token = await token_of(gateway)
        gateway.client._transport.client = ("192.0.2.7", 123)  # type: ignore[attr-defined]  # another address
        assert code(await gateway.call("retrieve", {"query": "q"}, headers={"RCP-Session": token})) is None
        for forged in ("", "x", token[:-1], token + "x", "a" * 256, "a" * 300, "ü"):
            headers: Any = {"RCP-Session": forged.encode("latin-1")}
            assert code(await gateway.call("retrieve", {"query": "q"}, headers=headers)) == -32001
        other = await token_of(gateway, headers={"RCP-Session": "forged"})
        assert other != token
        assert code(await gateway.call("retrieve", {"query": "q"})) is None


async def test_shutdown_ends_the_session_by_both_its_names(engines: Starter) -> None:
    """After `shutdown` the token and the address have no session; the caller may begin another."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        token = await token_of(gateway)
        headers = {"RCP-Session": token}
        assert (await gateway.result("shutdown", headers=headers)) == {}
        assert code(await gateway.call("retrieve", {"query": "q"}, headers=headers)) == -32001
        assert code(await gateway.call("retrieve", {"query": "q"})) == -32001
        second = await token_of(gateway)
        assert (await gateway.result("shutdown")) == {}
        assert code(await gateway.call("retrieve", {"query": "q"}, headers={"RCP-Session": second})) == -32001


async def test_a_batch_is_under_the_rule_member_by_member(engines: Starter) -> None:
    """Each member of a batch is refused or answered for itself; what a batch begins holds for what follows it."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        asking = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
        batch = [asking, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]
        answers = {answer["id"]: code(answer) for answer in (await gateway.post(batch)).json()}
        assert answers == {1: -32001, 2: None}
        batch = [{"jsonrpc": "2.0", "id": 0, "method": "initialize"}, asking]
        answers = {answer["id"]: code(answer) for answer in (await gateway.post(batch)).json()}
        assert answers == {0: None, 1: None}


async def test_every_endpoint_has_sessions_of_its_own(engines: Starter) -> None:
    """A handshake with the gateway is none with one of its engines, as they are different servers to the caller."""
    async with running([entry("e", await engines())], REQUIRED) as gateway:
        token = await token_of(gateway)
        alone = {"base": "/engines/e/rcp"}
        assert code(await gateway.call("retrieve", {"query": "q"}, **alone)) == -32001
        assert code(await gateway.call("retrieve", {"query": "q"}, headers={"RCP-Session": token}, **alone)) == -32001
        assert await token_of(gateway, **alone) != token
        assert code(await gateway.call("retrieve", {"query": "q"}, **alone)) is None


async def test_sessions_are_bounded(engines: Starter) -> None:
    """Of more sessions than `state.max_sessions` the least recently used are forgotten; it can begin anew."""
    settings = {**REQUIRED, "state": {"max_sessions": 2}}
    async with running([entry("e", await engines())], settings) as gateway:
        transport: Any = gateway.client._transport
        for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            transport.client = (host, 1)
            await token_of(gateway)
        assert code(await gateway.call("retrieve", {"query": "q"})) is None
        transport.client = ("192.0.2.1", 1)
        assert code(await gateway.call("retrieve", {"query": "q"})) == -32001
        assert code(await initialize(gateway)) is None


async def test_the_handshake_is_optional_by_default(engines: Starter) -> None:
    """By default every request counts as initialized, `initialize` can be repeated, and nothing is kept of it."""
    async with running([entry("e", await engines())]) as gateway:
        for _ in range(2):
            assert "session" not in (await initialize(gateway))["result"]["_meta"]
        assert code(await gateway.call("retrieve", {"query": "q"}, headers={"RCP-Session": "mine"})) is None


def test_more_workers_than_one_are_refused(tmp_path: Path) -> None:
    """`--workers` cannot undo what the file rules out: a session is known to one worker only."""
    registry, config = tmp_path / "rcp.json", tmp_path / "gateway.yaml"
    registry.write_text('{"engines": []}')
    config.write_text("server: {handshake: required}")
    with pytest.raises(SettingsError, match="'required' needs one worker"):
        serve(registry, config, None, 0, 2)
