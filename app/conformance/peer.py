"""The interface of a connection to the server under test: send one message, get what came back."""

from typing import Literal, Protocol

from app.conformance.reply import Json, ServerReply


class PeerGone(Exception):
    """The server cannot be reached, or has ended; the text says how."""


class Peer(Protocol):
    """A server over one transport. Nothing here bounds time: whoever calls does."""

    kind: Literal["http", "stdio"]

    async def send(self, body: bytes, method: str, events: bool = False) -> ServerReply:
        """Send `body`, which asks for `method`, and wait for its answer; `events` accepts a stream.

        Raises PeerGone.
        """
        ...

    async def tell(self, body: bytes, method: str) -> ServerReply:
        """Send what must not be answered; the reply says what came all the same. Raises PeerGone."""
        ...

    def join_session(self, token: str) -> None:
        """From now on, speak within the session that the server named in `_meta.session` (RCP §5.2)."""
        ...

    async def renew(self) -> bool:
        """Begin anew after the server was mute or ended; whether that makes another server process of it.

        Raises PeerGone.
        """
        ...

    def unasked(self) -> list[Json]:
        """Notifications that came so far without being looked for by a check."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...
