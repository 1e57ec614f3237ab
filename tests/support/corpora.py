"""Engines with corpora that can be asked as deep as they go, and the pages of a gateway in front of them."""

from typing import Any

from tests.support.running_gateway import RunningGateway
from tests.support.scripted_engine import ScriptedEngine, hit

Json = dict[str, Any]


def corpus(*ids: Any) -> Any:
    """An engine that has these documents in this order, and returns as many of them as it is asked for."""
    ranked = [hit(id, score=1.0 - rank / 1000, confidence=0.9 - rank / 1000) for rank, id in enumerate(ids)]

    async def answer(asked: Any) -> Json:
        return {"hits": ranked[: asked.params["k"]]}

    return answer


async def serving(engines: Any, *ids: Any, max_k: int = 100, **offer: Any) -> ScriptedEngine:
    """A started engine with that corpus."""
    engine: ScriptedEngine = await engines(capabilities={"retrieve": {"maxK": max_k, **offer}})
    engine.answers["retrieve"] = corpus(*ids)
    return engine


async def pages_of(gateway: RunningGateway, ks: Any = (), **params: Any) -> list[Json]:
    """All pages of a question, from `cursor` on if there is one, with these `k` (the last for ever)."""
    sizes = list(ks)
    pages: list[Json] = []
    while not pages or "nextCursor" in pages[-1]:
        size = {"k": sizes[min(len(pages), len(sizes) - 1)]} if sizes else {}
        pages.append(await gateway.retrieve(**{**params, **size}))
        params["cursor"] = pages[-1].get("nextCursor")
        assert len(pages) < 100
    return pages


def ids(*pages: Json) -> list[Any]:
    """The ids of all hits of these pages."""
    return [found["id"] for page in pages for found in page["hits"]]
