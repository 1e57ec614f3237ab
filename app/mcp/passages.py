"""Hits as an MCP client is given them: flat, few keys, and no more text than was agreed. Pure.

Decides what of a hit is said, and how much of each text: all hits stay, in their order; long texts are cut so that
short ones stay whole, and what was cut says so. It refuses to know how passages are written down for a model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.fusion.invisible_text import revealed

Passage = dict[str, Any]
Hit = Mapping[str, Any]

MAX_TITLE = 200
"""Characters of a title; engines may send anything."""

MAX_URI = 2048
"""Characters of a URI; a longer one is left out, for a part of it leads nowhere."""

UNSTATED = "untrusted"
"""The trust of a hit whose engine states none."""


def passages_of(hits: Sequence[Hit], budget: int) -> list[Passage]:
    """One passage for each hit, in order; their texts are `budget` bytes (UTF-8) long together at most."""
    texts = [text_of(hit).encode("utf-8", "replace") for hit in hits]
    allowed = shares([len(text) for text in texts], budget)
    return [_passage(hit, text, share) for hit, text, share in zip(hits, texts, allowed, strict=True)]


def shares(lengths: Sequence[int], budget: int) -> list[int]:
    """How much of each length fits `budget`: the same for all that are cut, and what short ones leave goes to them."""
    allowed = list(lengths)
    left = budget
    shortest_first = sorted(range(len(lengths)), key=lengths.__getitem__)
    for place, index in enumerate(shortest_first):
        allowed[index] = min(lengths[index], left // (len(lengths) - place))
        left -= allowed[index]
    return allowed


def cut(text: bytes, size: int) -> str:
    """At most `size` bytes from the beginning, ending with a whole character."""
    return text[:size].decode("utf-8", "ignore")


def text_of(hit: Hit) -> str:
    """The hit's text, else the texts of its content blocks (RCP §4.4), without what is hidden in it."""
    return revealed(_written(hit))


def _written(hit: Hit) -> str:
    text = hit.get("text")
    if type(text) is str:
        return text
    content = hit.get("content")
    blocks = content if type(content) is list else [content]
    texts = [block.get("text") if type(block) is dict else block for block in blocks]
    return "\n\n".join(text for text in texts if type(text) is str)


def title_of(hit: Hit) -> str:
    """What the hit is called: by its citation, its meta, the first line of its text, or its id."""
    names = [_object(hit, "citation").get("title"), _object(hit, "meta").get("title")]
    lines = text_of(hit)[: 4 * MAX_TITLE].strip().splitlines()
    for name in (*names, lines[0] if lines else None, str(hit["id"])):
        flat = " ".join(revealed(name[: 4 * MAX_TITLE]).split()) if type(name) is str else ""
        if flat:
            return flat if len(flat) <= MAX_TITLE else flat[: MAX_TITLE - 1] + "…"
    return str(hit["id"])


def uri_of(hit: Hit) -> str | None:
    """Where the hit is from, if its citation says."""
    citation = _object(hit, "citation")
    for uri in (citation.get("uri"), citation.get("source")):
        if type(uri) is str and uri and len(uri) <= MAX_URI:
            return uri
    return None


def engines_of(hit: Hit) -> list[str]:
    """The engines that returned it, the one whose copy this is first."""
    meta = _object(hit, "meta")
    marks = meta.get("engines")
    others = [mark.get("id") for mark in marks if type(mark) is dict] if type(marks) is list else []
    return list(dict.fromkeys(name for name in (meta.get("engine"), *others) if type(name) is str))


def trust_of(hit: Hit) -> str:
    """`trusted`, `community` or `untrusted` (RCP §15)."""
    level = _object(hit, "trust").get("level")
    return level if type(level) is str else UNSTATED


def suspected(hit: Hit) -> bool:
    """Whether somebody suspects that the text gives a model orders (RCP §15), or something is hidden in it."""
    if _object(hit, "trust").get("injectionSuspected") is True:
        return True
    titles = (_object(hit, "citation").get("title"), _object(hit, "meta").get("title"))
    return any(revealed(text) is not text for text in (_written(hit), *titles) if type(text) is str)


def _passage(hit: Hit, text: bytes, share: int) -> Passage:
    passage: Passage = {"id": str(hit["id"]), "title": title_of(hit)}
    uri = uri_of(hit)
    if uri is not None:
        passage["uri"] = uri
    passage["engines"] = engines_of(hit)
    passage["score"] = hit["score"]
    if type(hit.get("confidence")) in (int, float):
        passage["confidence"] = hit["confidence"]
    passage["trust"] = trust_of(hit)
    if suspected(hit):
        passage["injectionSuspected"] = True
    passage["text"] = cut(text, share)
    if share < len(text):
        passage["truncated"] = True
        passage["textBytes"] = len(text)
    return passage


def _object(hit: Hit, key: str) -> Mapping[str, Any]:
    value = hit.get(key)
    return value if type(value) is dict else {}
