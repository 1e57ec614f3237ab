"""The state of a gateway over fake engines, and an ASGI server of a few lines, for tests of the endpoints."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from app.api.admission import Admission
from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState, Readiness
from app.api.methods import ANSWERED
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Membership
from app.protocol.errors import CALL_KINDS, RCP_CODES
from app.settings.schema import GatewaySettings
from app.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, FakeEngines

Json = dict[str, Any]
Event = MutableMapping[str, Any]


def state_of(engines: Any, settings: Json | None = None) -> GatewayState:
    """The state of a gateway over this set of engines (fake or not)."""
    read = GatewaySettings.model_validate(settings or {})
    metrics = Metrics("1.2.3")
    metrics.declare_methods(ANSWERED)
    metrics.declare_codes(RCP_CODES)
    metrics.declare_engines((engine.id for engine in engines.engines), CALL_KINDS)
    return GatewayState(
        version="1.2.3",
        settings=read,
        engines=engines,
        membership=Membership(engines, "us-1234", read.retrieve.max_k, writing=read.index.enabled),
        instrumentation=RetrieveInstrumentation(metrics),
        metrics=metrics,
        readiness=Readiness(engines),
        admission=Admission(read.server, metrics.server),
    )


class FakeGateway:
    """A dispatcher over fake engines."""

    def __init__(self, *engines: FakeEngine, **settings: Any) -> None:
        self.engines = engines or (FakeEngine("docs"),)
        self.state = state_of(FakeEngines(*self.engines, disabled=["off"]), settings)
        self.dispatcher = Dispatcher(self.state)

    async def send(self, message: Any, path: str | None = None) -> Any:
        """The parsed answer to one message, None if there is none."""
        answer = await self.dispatcher.message(message, Caller("r-1"), path)
        return None if answer is None else json.loads(answer)

    async def ask(self, method: str, params: Any = None, message_id: Any = 1) -> Json:
        """The parsed answer to one request."""
        answer: Json = await self.send({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == message_id
        return answer

    async def batch(self, messages: list[Any], path: str | None = None) -> Any:
        """The parsed answer to a batch, None if there is none."""
        answer = await self.dispatcher.batch(messages, Caller("r-1"), path)
        return None if answer is None else json.loads(answer)

    def metric(self, name: str, **labels: str) -> float | None:
        """One series now."""
        return self.state.metrics.registry.get_sample_value(f"rcp_gateway_{name}", labels)


@dataclass
class Exchange:
    """One HTTP request put to an ASGI application, and what it sent back."""

    method: str = "POST"
    path: str = "/rcp"
    chunks: Iterable[bytes] = (b"",)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Event] = field(default_factory=list)
    received: int = 0

    @property
    def scope(self) -> Event:
        return {"type": "http", "method": self.method, "path": self.path, "headers": self.headers}

    async def run(self, app: Callable[..., Any]) -> "Exchange":
        """Put the request to `app` and wait until it is done with it."""
        events = self._events()
        await app(self.scope, events.__anext__, self._send)
        return self

    async def _events(self) -> AsyncIterator[Event]:
        chunks = list(self.chunks)
        for place, chunk in enumerate(chunks):
            self.received += 1
            yield {"type": "http.request", "body": chunk, "more_body": place + 1 < len(chunks)}
        await self.hang_up.wait()
        while True:
            yield {"type": "http.disconnect"}

    async def _send(self, event: Event) -> None:
        self.sent.append(event)

    @property
    def status(self) -> int:
        """The status of the answer."""
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        return b"".join(event.get("body", b"") for event in self.sent[1:])

    @property
    def json(self) -> Any:
        """The body, parsed; an answer that is no whole HTTP answer fails here."""
        assert [event["type"] for event in self.sent] == ["http.response.start", "http.response.body"]
        assert self.header("content-length") == str(len(self.body))
        assert self.header("content-type") == "application/json"
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """One header of the answer, None if it is not there; given twice it fails."""
        values = [value.decode() for key, value in self.sent[0]["headers"] if key.decode() == name]
        assert len(values) < 2
        return values[0] if values else None


def http_client(app: Any) -> httpx2.AsyncClient:
    """An HTTP client in front of an ASGI application."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://gateway")
