"""Engine selection on a collection that every Python has: what it saves with topics, and that shards are recognised."""

from random import Random

import pytest

from bench.selection_quality import Document, at_random, by_topic, compared, docstrings

ENGINES = 40


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return docstrings(10_000)


async def rows(engines: list[object], documents: list[Document]) -> dict[str, list[str]]:
    """name -> nDCG@10, R@50, share of calls, n; differences to asking all engines."""
    asked = Random(2).sample(documents, 460)
    measured = await compared(engines, asked[:60], asked[60:])  # type: ignore[arg-type]
    return {name: values for name, *values in measured}


async def test_a_quarter_of_topical_engines_is_enough(documents: list[Document]) -> None:
    """Neither the top of the list nor recall suffers."""
    measured = await rows(by_topic(documents, ENGINES), documents)
    ndcg, recall, *_ = measured["25% asked"]
    assert float(ndcg) >= 0
    assert float(recall) >= 0


async def test_random_shards_are_recognised(documents: list[Document]) -> None:
    """Where contents cannot be told apart, at least half of the engines are asked."""
    measured = await rows(at_random(documents, ENGINES), documents)
    assert float(measured["coverage 0.8"][3]) >= ENGINES / 2
