"""The issuer's published keys: fetched in the background, kept while the issuer cannot be reached, looked at again when
a token names a key that is not among them.

Decides when to look, how often at most, and which keys are taken: public, and large enough. It refuses to know tokens.
"""

import asyncio
import ssl
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import httpx2
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from app.protocol import envelope
from app.protocol.errors import ParseError
from app.settings.auth import JwtSettings
from app.telemetry.logs import logger

LOOK_AGAIN = 10.0
"""Seconds between two looks that unknown keys cause: tokens with invented keys do not make us a nuisance."""

MAX_BYTES = 524_288
MAX_KEYS = 100
LEAST_RSA_BITS = 2048

Fetch = Callable[[str], Awaitable[bytes]]
"""The body behind a URL. Raises OSError, ValueError."""


class SigningKeys:
    """The keys of one issuer. `version` grows whenever they changed."""

    __slots__ = (
        "_clock",
        "_fault",
        "_fetch",
        "_keys",
        "_looked",
        "_looking",
        "_seconds",
        "_text",
        "_timeout",
        "_url",
        "_watch",
        "version",
    )

    def __init__(
        self, settings: JwtSettings, fetch: Fetch | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """`clock` in seconds."""
        self._url = settings.jwks_url or ""
        self._timeout = settings.timeout_seconds
        self._seconds = settings.refresh_seconds
        self._fetch = fetch or fetched
        self._clock = clock
        self._keys: KeySet | None = None
        self._text = b""
        self._looked: float | None = None
        self._looking: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._fault: str | None = "not fetched yet"
        self.version = 0

    def start(self) -> None:
        """Look now and from then on, in the background."""
        self._watch = asyncio.get_running_loop().create_task(self._refresh())

    async def close(self) -> None:
        """Look no more."""
        for task in (self._watch, self._looking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def known(self, kid: str | None) -> KeySet | None:
        """All keys, after a look at the issuer if `kid` is not among them and it was not looked at just now.

        None while the issuer has never been reached.
        """
        if not self._has(kid) and self._may_look():
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())
            await asyncio.shield(self._looking)  # whoever waits may give up without ending it for the others
        return self._keys

    def _has(self, kid: str | None) -> bool:
        return self._keys is not None and (kid is None or any(key.kid == kid for key in self._keys))

    def _may_look(self) -> bool:
        under_way = self._looking is not None and not self._looking.done()
        return under_way or self._looked is None or self._clock() - self._looked >= LOOK_AGAIN

    async def _refresh(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._seconds if self._fault is None else min(self._seconds, LOOK_AGAIN))

    async def _look(self) -> None:
        """Fetch the keys; if that fails, those that are known stay."""
        self._looked = self._clock()
        before = self._fault
        try:
            async with asyncio.timeout(self._timeout):
                self._take(await self._fetch(self._url))
            self._fault = None
        except (OSError, ValueError, ParseError) as fault:  # TimeoutError is an OSError
            self._fault = type(fault).__name__  # its text may hold the URL
        if self._fault != before:
            if self._fault is None:
                logger().info("jwks_fetched", keys=0 if self._keys is None else len(self._keys.keys))
            else:
                logger().warning("jwks_failed", reason=self._fault)

    def _take(self, body: bytes) -> None:
        if body != self._text:
            keys = keys_in(body)
            self._text, self._keys = body, keys
            self.version += 1

    def __repr__(self) -> str:
        count = 0 if self._keys is None else len(self._keys.keys)
        return f"<SigningKeys {count} keys, version {self.version}, {self._fault or 'up to date'}>"


def keys_in(body: bytes) -> KeySet:
    """The usable keys of a JWKS (RFC 7517). Raises ValueError if there is none, ParseError if it is no JSON."""
    document = envelope.loads(body)
    listed = document.get("keys") if type(document) is dict else None
    if type(listed) is not list:
        raise ValueError("no list of keys")
    keys = [key for entry in listed[:MAX_KEYS] if (key := _usable(entry)) is not None]
    if not keys:
        raise ValueError("no usable key")
    return KeySet(keys)


def _usable(entry: Any) -> Key | None:
    """The key if it can verify signatures: asymmetric, meant for that, and not too short."""
    if type(entry) is not dict or entry.get("kty") not in ("RSA", "EC", "OKP") or entry.get("use", "sig") != "sig":
        return None
    try:
        if entry["kty"] == "RSA" and len(urlsafe_b64decode(f"{entry['n']}==")) * 8 < LEAST_RSA_BITS:
            return None
        key = JWKRegistry.import_key(entry)
        key.ensure_kid()
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key


async def fetched(url: str) -> bytes:
    """The body of a 200; redirects are not followed, no proxy is used. Raises OSError, ValueError."""
    # Authorities are read in a thread: it takes longer than any request may wait.
    verify = await asyncio.to_thread(ssl.create_default_context) if url.startswith("https:") else False
    try:
        async with (
            httpx2.AsyncClient(verify=verify, follow_redirects=False, trust_env=False, timeout=None) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            body = b""
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ValueError("too long")
            return body
    except httpx2.HTTPError as fault:
        raise ConnectionError(type(fault).__name__) from None
