"""The signing keys that a token issuer publishes (JWKS), fetched and refreshed in the background.

They are fetched again when a token names an unknown key, and kept while the issuer is unreachable. Only asymmetric keys
of sufficient size are used.
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

MIN_FETCH_INTERVAL = 10.0
"""Seconds between two fetches for unknown keys: tokens with invented key ids must not flood the issuer."""

MAX_BYTES = 524_288
"""Longest JWKS document that is read."""
MAX_KEYS = 100
MIN_RSA_BITS = 2048

Fetch = Callable[[str], Awaitable[bytes]]
"""URL -> body. Raises OSError, ValueError."""


class SigningKeys:
    """The keys of one issuer. `version` increases whenever they change."""

    __slots__ = (
        "_clock",
        "_fault",
        "_fetch",
        "_fetched_at",
        "_fetching",
        "_keys",
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
        self._fetched_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._fault: str | None = "not fetched yet"
        self.version = 0

    def start(self) -> None:
        """Fetch the keys now, and refresh them in the background."""
        self._watch = asyncio.get_running_loop().create_task(self._refresh())

    async def close(self) -> None:
        """Stop the background work."""
        for task in (self._watch, self._fetching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def known(self, kid: str | None) -> KeySet | None:
        """All keys; None while the issuer has never been reached.

        Fetches them first if the key id `kid` is unknown, unless they were fetched a moment ago.
        """
        if not self._has(kid) and self._may_fetch():
            if self._fetching is None or self._fetching.done():
                self._fetching = asyncio.get_running_loop().create_task(self._fetch_keys())
            # Shielded: several requests wait for the same fetch, and one that is cancelled must not end it for others.
            await asyncio.shield(self._fetching)
        return self._keys

    def _has(self, kid: str | None) -> bool:
        return self._keys is not None and (kid is None or any(key.kid == kid for key in self._keys))

    def _may_fetch(self) -> bool:
        under_way = self._fetching is not None and not self._fetching.done()
        return under_way or self._fetched_at is None or self._clock() - self._fetched_at >= MIN_FETCH_INTERVAL

    async def _refresh(self) -> None:
        while True:
            await self._fetch_keys()
            await asyncio.sleep(self._seconds if self._fault is None else min(self._seconds, MIN_FETCH_INTERVAL))

    async def _fetch_keys(self) -> None:
        """Fetch the keys. If that fails, the known keys stay in use."""
        self._fetched_at = self._clock()
        before = self._fault
        try:
            async with asyncio.timeout(self._timeout):
                self._take(await self._fetch(self._url))
            self._fault = None
        except (OSError, ValueError, ParseError) as fault:  # TimeoutError is an OSError
            self._fault = type(fault).__name__  # the text could contain the URL, and with it a secret
        # Logged when the state changes, not at each attempt.
        if self._fault != before:
            if self._fault is None:
                logger().info("jwks_fetched", keys=0 if self._keys is None else len(self._keys.keys))
            else:
                logger().warning("jwks_failed", reason=self._fault)

    def _take(self, body: bytes) -> None:
        # A new version makes all verified tokens be verified again, so an unchanged document must not cause one.
        if body != self._text:
            keys = keys_in(body)
            self._text, self._keys = body, keys
            self.version += 1

    def __repr__(self) -> str:
        count = 0 if self._keys is None else len(self._keys.keys)
        return f"<SigningKeys {count} keys, version {self.version}, {self._fault or 'up to date'}>"


def keys_in(body: bytes) -> KeySet:
    """The usable keys of a JWKS (RFC 7517). Raises ValueError without any, ParseError for invalid JSON."""
    document = envelope.loads(body)
    listed = document.get("keys") if type(document) is dict else None
    if type(listed) is not list:
        raise ValueError("no list of keys")
    keys = [key for entry in listed[:MAX_KEYS] if (key := _usable(entry)) is not None]
    if not keys:
        # Treated as a failed fetch: replacing good keys by none would refuse every token.
        raise ValueError("no usable key")
    return KeySet(keys)


def _usable(entry: Any) -> Key | None:
    """The key, if it is asymmetric, intended for signatures and large enough; else None."""
    # Symmetric keys ("oct") are not accepted: with a published secret anybody could sign tokens.
    if type(entry) is not dict or entry.get("kty") not in ("RSA", "EC", "OKP") or entry.get("use", "sig") != "sig":
        return None
    try:
        if entry["kty"] == "RSA" and len(urlsafe_b64decode(f"{entry['n']}==")) * 8 < MIN_RSA_BITS:
            return None
        key = JWKRegistry.import_key(entry)
        key.ensure_kid()
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key


async def fetched(url: str) -> bytes:
    """The body of a response with status 200, without redirects and proxies. Raises OSError, ValueError."""
    # In a thread: loading the certificate authorities would block the event loop.
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
                if len(body) > MAX_BYTES:  # Content-Length may be missing or wrong
                    raise ValueError("too long")
            return body
    except httpx2.HTTPError as fault:
        raise ConnectionError(type(fault).__name__) from None
