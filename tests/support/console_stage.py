"""A federation worth looking at, for tests and pictures of the console: engines that agree and that differ."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from app.api.gateway_state import GatewayState
from tests.support.listening_gateway import listening
from tests.support.running_gateway import Json, entry
from tests.support.scripted_engine import Asked, RpcFault, ScriptedEngine

TEXTS = {
    "sorted": "Return a new sorted list from the items in iterable. The sort is stable: items that compare equal keep "
    "the order in which they were given.",
    "list.sort": "Sort the list in ascending order and return None. The sort is in-place, i.e. the list itself is "
    "modified, and stable.",
    "heapq.merge": "Merge several sorted inputs into a single sorted output, without reading it all into memory.",
    "bisect.insort": "Insert x into a sorted list, and keep it sorted. If x is in it already, insert it to the right.",
    "topological": "A graph's nodes in an order in which each comes after those that it depends on.",
    "sortedcontainers": "Sorted list, sorted dict and sorted set, in pure Python and as fast as extensions in C.",
    "natsort": "Sort lists the way people read them: item 9 before item 10.",
    "sql.orderby": "ORDER BY sorts the rows of a result. Without it their order says nothing.",
    "unix.sort": "sort writes the concatenation of its files in sorted order to standard output.",
    "radix": "Radix sort orders integers digit by digit and never compares two of them.",
}
OFFER: Json = {
    "retrieve": {"maxK": 100, "modes": ["dense", "sparse", "hybrid"], "fusion": ["rrf"], "confidence": True},
    "citations": {},
    "filter": {"fields": {"lang": "keyword", "year": "int", "reviewed": "bool"}},
}


def told(*ids: str, least: float = 0.3, **more: Any) -> list[Json]:
    """A list of these documents, with confidences that fall to `least`."""
    step = (0.96 - least) / max(1, len(ids) - 1)
    return [
        {
            "id": name,
            "score": round(12 - rank * 0.7, 2),
            "confidence": round(0.96 - rank * step, 3),
            "text": TEXTS.get(name, f"About {name}."),
            "citation": {"title": name, "uri": f"https://docs.example/{name}"},
            "trust": {"level": "trusted" if rank % 3 else "community"},
            **more,
        }
        for rank, name in enumerate(ids)
    ]


class Stage(NamedTuple):
    """A gateway with its engines in front of a browser."""

    state: GatewayState
    url: str
    engines: dict[str, ScriptedEngine]

    @property
    def docs(self) -> ScriptedEngine:
        return self.engines["docs"]


def held(event: asyncio.Event, result: Any) -> Any:
    """An answer that comes once `event` is set."""

    async def answer(asked: Asked) -> Any:
        await event.wait()
        return result

    return answer


def usual() -> dict[str, ScriptedEngine]:
    """Three engines over overlapping corpora."""
    docs = told("sorted", "list.sort", "bisect.insort", "heapq.merge", "topological")
    code = told("list.sort", "sortedcontainers", "sorted", "natsort", "radix", least=0.5)
    wiki = told("radix", "sorted", "unix.sort", "sql.orderby", least=0.1)
    narrow: Json = {"retrieve": {"maxK": 50, "modes": ["sparse"], "fusion": ["rrf"]}, "citations": {}}
    return {
        "docs": ScriptedEngine(capabilities=OFFER, results=docs, name="Docs"),
        "code": ScriptedEngine(capabilities={**OFFER, "embed": {"dimension": 384, "identity": "m"}}, results=code),
        "wiki": ScriptedEngine(capabilities=narrow, results=wiki, name="Wiki"),
    }


@asynccontextmanager
async def staged(
    engines: dict[str, ScriptedEngine] | None = None,
    settings: Json | None = None,
    entries: dict[str, Json] | None = None,
    **more: Any,
) -> AsyncIterator[Stage]:
    """A listening gateway over these engines; `entries` adds to the registry entry of an engine."""
    made = usual() if engines is None else engines
    async with AsyncExitStack() as stack:
        for engine in made.values():
            await engine.start()
            stack.push_async_callback(engine.stop)
        registry = [entry(name, engine, **(entries or {}).get(name, {})) for name, engine in made.items()]
        state, port = await stack.enter_async_context(listening(registry, settings, **more))
        yield Stage(state, f"http://127.0.0.1:{port}", made)


def broken() -> RpcFault:
    """What an engine answers whose index is not there."""
    return RpcFault(-32010, "the index is being rebuilt")
