"""The secret of a deployment: a key for ids that callers must not be able to forge.

With `auth.secret` or shared state it is the same on every replica and after a restart. Otherwise it is generated at
start, and workers share it through a file in their common directory.
"""

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes, token_hex

from app.protocol.errors import StateUnreachable
from app.state.store import Store

KEY_BYTES = 32
FOREVER = 10 * 365 * 86_400.0
"""Seconds that a shared secret is stored: ids made with it never expire."""

_NAME = "key"


class DeploymentSecret:
    """Determines the key once and keeps it."""

    __slots__ = ("_drawn", "_shared", "_store")

    def __init__(self, store: Store | None, folder: str | None) -> None:
        """`store`: state shared by replicas, if any; `folder`: directory shared by the workers of this machine."""
        self._store = store
        self._shared: bytes | None = None
        self._drawn = b"" if store is not None else _drawn(folder)

    @property
    def temporary(self) -> bool:
        """Whether a restart generates another key, unless one is configured."""
        return self._store is None

    async def key(self, configured: str | None) -> bytes:
        """The key; `configured` is the operator's own. Raises StateUnreachable if it is shared and cannot be read."""
        if configured is not None:
            return blake2b(configured.encode(), digest_size=KEY_BYTES, person=b"auth.secret").digest()
        if self._store is None:
            return self._drawn
        if self._shared is None:
            self._shared = await self._agreed(self._store)
        return self._shared

    @staticmethod
    async def _agreed(store: Store) -> bytes:
        def draw(before: str | None) -> str | None:
            return token_hex(KEY_BYTES) if before is None else None

        # A key generated during an outage would make ids that no other replica accepts.
        if store.degraded:
            raise StateUnreachable("the shared secret cannot be read now")
        found = await store.change(_NAME, draw, FOREVER, str, str, size=len)
        if store.degraded:  # the value may be this process's own
            raise StateUnreachable("the shared secret cannot be read now")
        assert found is not None
        return bytes.fromhex(found)

    def __repr__(self) -> str:
        return f"<DeploymentSecret, {'drawn at start' if self._store is None else 'shared'}>"


def _drawn(folder: str | None) -> bytes:
    """A new key; with a directory, the one that the first process has written there."""
    key = token_bytes(KEY_BYTES)
    if folder is None:
        return key
    path = Path(folder, "secret")
    mine = path.with_name(f"secret.{os.getpid()}")
    with suppress(FileNotFoundError):
        mine.unlink()
    # Created with mode 0600 rather than changed afterwards: it is never readable by others.
    descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    # Another worker was first: its key counts.
    with suppress(FileExistsError):
        os.link(mine, path)  # atomic: no other worker ever reads half a key
    mine.unlink()
    return path.read_bytes()
