"""HTTP connection to the server under test: one POST per message (RCP §5.2, §9). No proxies, redirects or cookies."""

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Literal

import httpx2

from app.conformance.peer import PeerGone
from app.conformance.reply import Json, ServerReply, parsed
from app.conformance.verdict import Departure

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one answer; a longer one is a departure and not an end of our memory."""

EVENTS = "text/event-stream"


class HttpPeer:
    """An RCP server at `url`, the address that methods are appended to."""

    kind: Literal["http", "stdio"] = "http"

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        verify: ssl.SSLContext | bool | None = None,
        explain: Callable[[Exception], str] = lambda fault: f"{type(fault).__name__}: {fault or 'no more was said'}",
    ) -> None:
        """`verify`: what certificates are verified with, by default the system's authorities; `explain`: a failed
        connection in words."""
        self.url = url
        self._explain = explain
        self._notifications: list[Json] = []
        # Certificates are of no use to plain HTTP, and take longer to load than a dozen checks.
        self._client = httpx2.AsyncClient(
            trust_env=False,
            timeout=None,
            headers=dict(headers),
            verify=url.startswith("https://") if verify is None else verify,
        )

    async def send(self, body: bytes, method: str, events: bool = False) -> ServerReply:
        """POST `body` to the path of `method`, or to the bare address for an empty one."""
        headers = {"Content-Type": "application/json", "Accept": EVENTS if events else "application/json"}
        path = f"{self.url}/{method}" if method else self.url
        try:
            async with self._client.stream("POST", path, content=body, headers=headers) as response:
                content = await _read(response)
        except httpx2.HTTPError as fault:
            raise PeerGone(self._explain(fault)) from None
        found = {name.lower(): value for name, value in response.headers.items()}
        if found.get("content-type", "").startswith(EVENTS):
            return self._streamed(content, response.status_code, found)
        return ServerReply(content, response.status_code, found)

    async def tell(self, body: bytes, method: str) -> ServerReply:
        """The same: over HTTP the answer to nothing is an empty one."""
        return await self.send(body, method)

    def join_session(self, token: str) -> None:
        """Send the token back in its header."""
        self._client.headers["RCP-Session"] = token

    async def renew(self) -> bool:
        """Nothing to begin: each request stands alone."""
        return False

    def unasked(self) -> list[Json]:
        """Notifications in streams."""
        return self._notifications

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _streamed(self, content: bytes, status: int, headers: Mapping[str, str]) -> ServerReply:
        messages = [parsed(data) for data in frames(content)]
        told = [message for message in messages if isinstance(message, dict) and "method" in message]
        responses = [message for message in messages if not (isinstance(message, dict) and "method" in message)]
        if responses and messages[-1] is not responses[-1]:
            raise Departure("the response is not the last frame of the stream")
        self._notifications += told
        last = json.dumps(responses[-1]).encode() if responses else b""
        return ServerReply(last, status, headers, tuple(told), len(responses))

    def __repr__(self) -> str:
        return f"HttpPeer({self.url})"


def frames(content: bytes) -> list[bytes]:
    """The `data` of each event of a stream; comments and other fields are none of ours."""
    events = content.replace(b"\r\n", b"\n").split(b"\n\n")
    lines = [[line for line in event.split(b"\n") if line.startswith(b"data:")] for event in events]
    return [b"\n".join(line[5:].removeprefix(b" ") for line in data) for data in lines if data]


async def _read(response: httpx2.Response) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_BODY:
            raise Departure(f"the answer is longer than {MAX_BODY} bytes")
    return bytes(content)
