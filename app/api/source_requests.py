"""Requests the registry documents of engine sources that have a `url`, each at its own interval.

An error never removes an engine: the registry of a team may be down without costing an answer.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterable
from ssl import SSLContext, create_default_context

from app.settings.environment import fill_headers
from app.settings.field_errors import FieldError
from app.settings.source_files import MAX_BYTES
from app.settings.source_settings import SourceEntry

JITTER = 0.2
REQUEST_SECONDS = 10.0
"""Longest time of one request, all included."""

Document = bytes | FieldError | None
"""What a request brought: a document, why there is none, or None if it is the same as before."""


class SourceRequests:
    """One task for each source with a `url`."""

    __slots__ = ("_receive", "_tasks")

    def __init__(self, receive: Callable[[str, Document], None]) -> None:
        """`receive` is called with the name of a source and what the request brought."""
        self._receive = receive
        self._tasks: dict[str, tuple[SourceEntry, asyncio.Task[None]]] = {}

    def renew(self, sources: Iterable[SourceEntry]) -> None:
        """Request the documents of these sources from now on; one whose settings are the same keeps its interval."""
        wanted = {source.name: source for source in sources if source.url is not None}
        for name, (entry, task) in list(self._tasks.items()):
            if wanted.get(name) != entry:
                task.cancel()
                del self._tasks[name]
        for name, entry in wanted.items():
            if name not in self._tasks:
                task = asyncio.create_task(self._repeat(entry), name=f"source:{name}")
                self._tasks[name] = entry, task

    async def stop(self) -> None:
        """Request nothing more."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, source: SourceEntry) -> None:
        import httpx2

        etag: str | None = None
        verify = await asyncio.to_thread(create_default_context)  # reads the certificates of the system
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    found, etag = await _request(source, etag, verify)
            except TimeoutError:
                found = FieldError("url", f"no complete answer within {REQUEST_SECONDS:g} s", "check the server")
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as fault:
                # The text of the error may quote the URL, and with it a secret.
                found = FieldError("url", f"the request failed ({type(fault).__name__})", "check the server")
            self._receive(source.name, found)
            # Jitter keeps many gateways from asking in step.
            await asyncio.sleep(source.refresh_seconds * random.uniform(1 - JITTER, 1 + JITTER))

    def __repr__(self) -> str:
        return f"<SourceRequests for {sorted(self._tasks)}>"


async def _request(source: SourceEntry, etag: str | None, verify: SSLContext) -> tuple[Document, str | None]:
    """What the URL answers, and the ETag to send next time."""
    import httpx2

    filled, faults = fill_headers({"engines": [{"headers": dict(source.headers)}]}, os.environ)
    if faults:
        return FieldError("headers", faults[0].message, faults[0].suggestion), etag
    headers = {**filled["engines"][0]["headers"], "accept": "application/json"}
    if etag is not None:
        headers["if-none-match"] = etag
    async with (
        # Redirects could lead anywhere, with the headers; a proxy of the environment could answer in their place.
        httpx2.AsyncClient(trust_env=False, timeout=None, verify=verify, follow_redirects=False) as client,
        client.stream("GET", source.url or "", headers=headers) as response,
    ):
        if response.status_code == 304 and etag is not None:
            return None, etag
        if response.status_code != 200:
            return FieldError("url", f"answers with HTTP {response.status_code} instead of 200"), etag
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_BYTES:
                break  # the look reports a document that is too large
        return body, response.headers.get("etag")
