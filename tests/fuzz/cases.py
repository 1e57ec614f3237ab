"""The three kinds of cases: what is sent, and what must hold of what comes back.

A case is whatever a `random.Random` makes of it; a number and a seed name it, and give it again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from app.protocol.errors import LegError
from tests.fuzz import answers, files, requests
from tests.fuzz.chance import pieces
from tests.fuzz.gateway import Broken, FuzzedGateway, fuzzed

Case = Callable[[Random], Awaitable[None]]


@asynccontextmanager
async def bytes_of_callers(place: Path) -> AsyncIterator[Case]:
    """Bytes at `/rcp` from the tenant `red`, from strangers, and from nobody."""
    async with fuzzed("red", "blue", "shared") as gateway:

        async def case(chance: Random) -> None:
            await gateway.converse(pieces(chance, requests.conversation(chance)))

        yield case
        await _still_serves(gateway)


@asynccontextmanager
async def bytes_of_engines(place: Path) -> AsyncIterator[Case]:
    """Bytes that an engine answers to a question, a handshake or a ping, beside an engine that is in good health."""
    async with fuzzed("rogue", "shared") as gateway:
        rogue = gateway.engines["rogue"]
        known = next(engine for engine in gateway.state.engines.engines if engine.id == "rogue")

        async def case(chance: Random) -> None:
            method = chance.choice(("retrieve", "retrieve", "retrieve", "initialize", "ping"))
            rogue.ends = chance.random() < 0.8
            rogue.script = lambda asked, call_id: (
                pieces(chance, answers.answer(chance, "retrieve" if asked == "retrieve" else "initialize", call_id))
                if asked == method or (method == "initialize" and asked == "info")
                else None
            )
            if method != "retrieve":
                await _greeted(known, method)
            answered = await gateway.ask("retrieve", {"query": "q", "k": 100})
            found = {hit["id"] for hit in answered["result"]["hits"]} if "result" in answered else set()
            if not found >= {"good-0", "good-1", "good-2"}:
                raise Broken(f"a broken engine costs another one's hits: {str(answered)[:2000]}")
            if method == "initialize":
                for listing in ("info", "catalog/list"):
                    if "result" not in await gateway.ask(listing, {}):
                        raise Broken(f"a broken advertisement spoils {listing}")

        yield case
        rogue.script = None
        await _still_serves(gateway)


async def _greeted(engine: Any, method: str) -> None:
    """Shake hands with an engine, or look how it is."""
    deadline = asyncio.get_running_loop().time() + 5
    try:
        if method == "initialize":
            await engine.handshake(deadline)
        else:
            await engine.call("ping", {}, deadline)
    except LegError:
        return


@asynccontextmanager
async def bytes_of_files(place: Path) -> AsyncIterator[Case]:
    """Bytes of a registry, of settings, or of tenants."""

    async def case(chance: Random) -> None:
        files.check(chance, place)

    yield case


async def _still_serves(gateway: FuzzedGateway) -> None:
    """After all of it the gateway answers as it did before."""
    answered = await gateway.ask("retrieve", {"query": "q", "k": 100})
    if len(answered["result"]["hits"]) < 3:
        raise Broken(f"it does not serve as before: {answered}")


KINDS = {"requests": bytes_of_callers, "answers": bytes_of_engines, "files": bytes_of_files}
