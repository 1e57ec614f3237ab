"""MCP with random messages: every request is answered as the protocol says, and nothing is a fault of the gateway."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Starter
from tests.support.mcp_peer import ACCEPT, MODERN, SERVED
from tests.support.running_gateway import Json, entry, running
from tests.support.stdio_caller import calling, command

ID = "hit_WyJkb2NzIiwiYSIsInEiXQ"
"""Of the hit `a` of the engine `docs`."""

VALUES: list[Any] = [
    *(None, True, 1.5, -1, 2**70, "", "x", "\u202e", [], {}, [1], {"a": 1}, "[", "{", '{"field": "x"}'),
    *(
        "retrieve",
        "search",
        "fetch",
        "feedback",
        "list_engines",
        MODERN,
        "2025-03-26",
        ID,
        f"rcp://hit/{ID}",
        "hit_W10",
    ),
]
NAMES = ["name", "uri", "query", "k", "id", "arguments", "_meta", "progressToken", "cursor", "filter", "engines"]
METHODS = [
    *("initialize", "ping", "server/discover", "tools/list", "tools/call", "resources/read", "resources/list"),
    *("resources/templates/list", "notifications/cancelled", "prompts/list"),
]
PREFIX = "io.modelcontextprotocol"


class Messages:
    """Random messages, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Any JSON value."""
        kind = self.chance.random() if depth < 3 else 1.0
        if kind < 0.2:
            return {self.chance.choice(NAMES): self.value(depth + 1) for _ in range(self.chance.randint(0, 3))}
        if kind < 0.3:
            return [self.value(depth + 1) for _ in range(self.chance.randint(0, 3))]
        return self.chance.choice(VALUES)

    def message(self) -> Json:
        """One message that is more or less sound."""
        pick = self.chance.choice
        wild = {name: self.value() for name in ("query", "k", "filter", "engines", "cursor", "mode", "id")}
        params: Json = {
            "name": pick(["retrieve", "search", "fetch", "list_engines", "feedback", self.value()]),
            "uri": pick([f"rcp://hit/{ID}", self.value()]),
            "arguments": pick([{"query": "q"}, {"id": ID}, wild, self.value()]),
            "protocolVersion": pick(["2025-11-25", "2025-03-26", self.value()]),
            "requestId": self.value(),
        }
        if self.chance.random() < 0.6:
            described = {
                f"{PREFIX}/protocolVersion": pick([MODERN, MODERN, self.value()]),
                f"{PREFIX}/clientCapabilities": pick([{}, {"extensions": self.value()}, self.value()]),
                "progressToken": self.value(),
            }
            params["_meta"] = pick([described, described, self.value()])
        message: Json = {
            "jsonrpc": pick(["2.0"] * 9 + [self.value()]),
            "id": pick([1, "a", self.value()]),
            "method": pick([*METHODS, "tools/call", "tools/call", self.value()]),
            "params": pick([params, params, params, self.value()]),
        }
        return {name: value for name, value in message.items() if self.chance.random() > 0.05}

    def any(self) -> Any:
        """A message, or a batch of some."""
        if self.chance.random() < 0.9:
            return self.message()
        return [self.message() for _ in range(self.chance.randint(0, 3))]

    def headers(self, message: Any) -> dict[str, str]:
        """Headers that mostly fit."""
        headers = {"accept": self.chance.choice([ACCEPT, "application/json", "text/event-stream"])}
        headers["content-type"] = "application/json"
        version = self.chance.choice([None, MODERN, MODERN, "2025-03-26", "2025-11-25", "x"])
        if version is not None:
            headers["mcp-protocol-version"] = version
        method = message.get("method") if isinstance(message, dict) else None
        params = message.get("params") if isinstance(message, dict) else None
        if isinstance(method, str) and method.isascii():
            headers["mcp-method"] = method
            name = params.get("uri" if method == "resources/read" else "name") if isinstance(params, dict) else None
            if isinstance(name, str) and name.isascii():
                headers["mcp-name"] = name
        return headers


@pytest.mark.parametrize("seed", range(4))
async def test_random_messages_over_http(engines: Starter, seed: int) -> None:
    """Always a status and a body of the protocol, never an internal error, and no place is lost."""
    messages = Messages(seed)
    seen: set[int] = set()
    async with running([entry("docs", await engines())], {**SERVED, "fusion": {"learning": "on"}}) as gateway:
        for _ in range(300):
            message = messages.any()
            headers = messages.headers(message)
            response = await gateway.client.post("/mcp", content=json.dumps(message), headers=headers)
            assert response.status_code in (200, 202, 400, 404), (message, response.text)
            assert "-32603" not in response.text, (message, response.text)
            assert bool(response.content) == (response.status_code != 202)
            seen.add(response.status_code)
        assert gateway.state.admission.in_flight == 0
    assert seen >= {200, 202, 400}


async def test_random_messages_over_stdio(engines: Starter, tmp_path: Path) -> None:
    """Each request is answered once, and the last one as well as the first."""
    messages = Messages(9)
    sent = [messages.any() for _ in range(400)]
    async with calling(command(tmp_path, [entry("docs", await engines())], name="mcp")) as caller:
        for message in sent:
            caller.send(message)
        caller.send({"jsonrpc": "2.0", "id": "last", "method": "ping"})
        code, out, err = await caller.end()
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert any(isinstance(answer, dict) and answer.get("id") == "last" for answer in answers)
    assert "-32603" not in out.decode()
    assert "Traceback" not in err
