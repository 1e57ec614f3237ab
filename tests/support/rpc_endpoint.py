"""An RPC endpoint with nothing but a script behind it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from app.api.caller import Caller
from app.api.rpc import RpcEndpoint
from app.protocol import envelope
from app.protocol.errors import RcpError
from tests.support.fake_engine import FakeEngines
from tests.support.fake_gateway import Exchange, state_of

LIMIT = 1024
"""Bytes of a body that the endpoint takes."""

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class FakeDispatcher:
    """Answers whatever it is told, and keeps what it was asked: (kind, message, request id, path method)."""

    def __init__(self, answer: bytes | Callable[[], Awaitable[bytes | None]] | None = ANSWER) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any, str, str | None]] = []
        self.ended: list[str] = []

    def knows(self, engine_id: str) -> bool:
        return engine_id == "docs"

    async def message(self, message: Any, caller: Caller, path_method: str | None, stream: Any = None) -> bytes | None:
        return await self._asked("message", message, caller.request_id, path_method)

    async def batch(self, messages: list[Any], caller: Caller, path_method: str | None) -> bytes | None:
        return await self._asked("batch", messages, caller.request_id, path_method)

    def refused(self, fault: RcpError, request_id: str, status: int, message_id: Any = None) -> bytes:
        return envelope.failure(message_id, fault)

    async def _asked(self, kind: str, message: Any, request_id: str, path_method: str | None) -> bytes | None:
        self.asked.append((kind, message, request_id, path_method))
        try:
            answer = await self.answer() if callable(self.answer) else self.answer
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        return answer


class ScriptedEndpoint:
    """An RPC endpoint with a fake dispatcher behind it."""

    def __init__(self, answer: Any = ANSWER, **wishes: Any) -> None:
        self.dispatcher = FakeDispatcher(answer)
        self.state = state_of(FakeEngines(), {"server": {"max_body_bytes": LIMIT, **wishes}})
        self.app: Any = RpcEndpoint(self.dispatcher, self.state)  # type: ignore[arg-type]

    async def post(self, *chunks: bytes, path: str = "/rcp", **headers: str) -> Exchange:
        """Put one POST to the endpoint; `headers` with underscores for dashes."""
        sent = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        return await Exchange(path=path, chunks=chunks or (b"",), headers=sent).run(self.app)
