"""Heuristic screening of hits for prompt injection, by a few documented phrases and by invisible characters.

Also marks hits that callers reported as poisoned. Linear in the text. A match is a hint, not proof.
"""

import re
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any, NamedTuple
from unicodedata import normalize

from app.fusion.invisible_text import readable, revealed
from app.fusion.merge import FusedList
from app.fusion.trust import distrusted, suspected

Hit = dict[str, Any]


MAX_TEXT = 262_144
"""Characters of each text of a hit that are screened."""

MAX_ATTEMPTS = 200
"""Possible starts of a phrase that are tried in one text. Bounds the time that a crafted text can take."""


STEP = 32_768
"""Characters screened before yielding to the event loop: about 2 ms."""


class Phrase(NamedTuple):
    """One pattern: words that follow one another in one sentence."""

    name: str
    starts: tuple[str, ...]
    """Possible first words."""
    whole: re.Pattern[str]

    def within(self, text: str) -> bool:
        """Whether it occurs in `text`, starting at one of the first MAX_ATTEMPTS candidates."""
        places = islice(_places(text, self.starts), MAX_ATTEMPTS)
        return any(self.whole.match(text, place) for place in places)


def _places(text: str, starts: tuple[str, ...]) -> Iterator[int]:
    for start in starts:
        place = text.find(start)
        while place >= 0:
            yield place
            place = text.find(start, place + 1)


def _phrase(name: str, starts: str, *parts: str, gap: int = 4) -> Phrase:
    """`starts` and every part are alternatives with bars; at most `gap` other words stand between two of them."""
    between = rf"(?:[^\w.!?]++\w++){{0,{gap}}}?[^\w.!?]++"  # possessive: nothing is ever tried twice
    words = [rf"(?:{part})\b" for part in (starts, *parts)]
    return Phrase(name, tuple(starts.split("|")), re.compile(r"\b" + between.join(words)))


PHRASES = (
    _phrase(
        "override",
        "ignore|disregard|forget|override|bypass",
        "previous|prior|above|earlier|preceding|all|any|your|system|these|those",
        "instructions?|prompts?|rules?|guidelines?|directions?|directives?|commands?|messages?|context",
    ),
    _phrase(
        "persona",
        "you are now|from now on you|from now on, you",
        "an?|the|are|will|must|acting",
        gap=0,
    ),
    _phrase(
        "disclosure",
        "reveal|print|show|repeat|output|display|leak|disclose|send",
        "your|the|system|hidden|initial",
        "system prompt|prompt|instructions",
    ),
    _phrase(
        "secrecy",
        "do not|don't|never|without",
        "(?:tell|inform|mention|alert)(?:ing)?",
        "the user",
        gap=2,
    ),
    _phrase(
        "address",
        "assistant|language model|llm|chatbot|ai agent",
        "you must|must now|you should now|you will now|please ignore|must ignore|should ignore|must obey",
        gap=3,
    ),
)
"""Patterns, matched after case folding and normalisation of look-alike letters."""

MARKUP = ("<|im_start|>", "<|im_end|>", "<|system|>", "<|endoftext|>", "<|eot_id|>", "[inst]", "[/inst]", "<<sys>>")
"""Role markers of chat templates; documents have no reason to contain them."""


def reasons(text: str) -> Iterator[str]:
    """Names of the patterns that match a text, `invisible` and `markup` first."""
    text = text[:MAX_TEXT]
    # ASCII text, the common case, has no invisible characters and no look-alike letters.
    if not text.isascii():
        if revealed(text) is not text:
            yield "invisible"
        text = normalize("NFKC", readable(text))
    text = text.lower().replace("’", "'")
    if any(mark in text for mark in MARKUP):
        yield "markup"
    for phrase in PHRASES:
        if phrase.within(text):
            yield phrase.name


class InjectionScreen:
    """Screens the hits of one request.

    `marked`, `reported` and `dropped` are the counts of the last call. No text is screened twice.
    """

    __slots__ = ("_judged", "_known", "_mode", "dropped", "marked", "reported")

    def __init__(self, mode: str, known: Container[str] = ()) -> None:
        """`mode`: off, mark or drop. `known`: ids of hits that callers reported as poisoned."""
        self._mode = mode
        self._known = known
        self._judged: dict[str, bool] = {}
        """Text -> whether a pattern matches."""
        self.marked = self.reported = self.dropped = 0

    def steps(self, fusion: FusedList, start: int, stop: int) -> Iterator[None]:
        """Screen ahead the texts that `kept`, and `inspect` for the hits from `start` to `stop`, will need.

        Yields after every STEP characters, so that the caller can yield to the event loop: all texts of one response
        can take a second.
        """
        if self._mode == "off":
            return
        left = STEP
        for hit in fusion.hits() if self._mode == "drop" else fusion.hits(start, stop):
            for text in _texts(hit):
                if text not in self._judged:
                    self._judged[text] = _fits(text)
                    left -= min(len(text), MAX_TEXT)
                    if left <= 0:
                        left = STEP
                        yield

    def suspicious(self, hit: Hit) -> bool:
        """Whether any text of this hit that a model would see matches a pattern."""
        judged = self._judged
        for text in _texts(hit):
            if text not in judged:
                judged[text] = _fits(text)
            if judged[text]:
                return True
        return False

    def kept(self, fusion: FusedList) -> FusedList:
        """The same order without the hits to drop."""
        if self._mode != "drop":
            return fusion
        sound = [place for place, hit in enumerate(fusion.hits()) if not self.suspicious(hit)]
        self.dropped = len(fusion) - len(sound)
        return fusion.pick(sound) if self.dropped else fusion

    def inspect(self, hits: list[Hit]) -> None:
        """Set `trust` of suspicious and reported hits. Changes the hits in place: they must not be shared."""
        self.marked = self.reported = 0
        for hit in hits:
            if f"{hit['id']}" in self._known:
                hit["trust"] = distrusted(hit.get("trust"))
                self.reported += 1
            elif self._mode == "mark" and self.suspicious(hit):
                hit["trust"] = suspected(hit.get("trust"))
                self.marked += 1

    def __repr__(self) -> str:
        return f"<InjectionScreen {self._mode}: {self.marked} marked, {self.reported} reported, {self.dropped} dropped>"


def _fits(text: str) -> bool:
    return any(True for _ in reasons(text))


def _texts(hit: Hit) -> Iterator[str]:
    text = hit.get("text")
    if type(text) is str:
        yield text
    blocks = hit.get("content")
    for block in blocks if type(blocks) is list else [blocks]:
        text = block.get("text") if type(block) is dict else block
        if type(text) is str:
            yield text
    for holder, key in (("citation", "title"), ("chunk", "context")):
        stated = hit.get(holder)
        text = stated.get(key) if type(stated) is dict else None
        if type(text) is str:
            yield text
