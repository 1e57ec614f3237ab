"""A document of a demo engine, and its form as a hit (RCP §7.7)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FIELDS = {"module": "keyword", "kind": "keyword"}
"""What documents of the standard library can be filtered by (RCP §8)."""


@dataclass(frozen=True, slots=True)
class DemoDocument:
    """One thing to find. `names` are the words it is called by, which weigh more than those of its text."""

    id: str
    names: str
    text: str
    citation: Mapping[str, str]
    meta: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A document that answers a question; `score` in the engine's own scale, `confidence` in [0, 1]."""

    document: DemoDocument
    score: float
    confidence: float

    def hit(self, *, include_text: bool) -> dict[str, Any]:
        """The hit of RCP §7.7."""
        document = self.document
        hit: dict[str, Any] = {"id": document.id, "score": self.score, "confidence": self.confidence}
        if include_text:
            hit["text"] = document.text
        return hit | {"unit": "document", "citation": dict(document.citation), "meta": dict(document.meta)}


@dataclass(frozen=True, slots=True)
class Search:
    """What a search brought: the best first, and how many documents were candidates for it."""

    found: list[Found] = field(default_factory=list)
    candidates: int = 0


def words_of_name(name: str) -> str:
    """A dotted, snake_case or CamelCase name as words, itself included: `JSONDecoder` is also JSON and Decoder."""
    parts = re.split(r"[^A-Za-z0-9]+", name)
    inner = [word for part in parts for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", part) if word != part]
    return " ".join([*parts, *inner])
