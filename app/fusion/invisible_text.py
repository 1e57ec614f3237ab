"""Removal of characters that people do not see but models read: tags, overrides, stray selectors, zero-width. Pure.

Characters that writing systems need stay: emoji, flags, ideographic variants, marks of right-to-left and Indic
scripts. Linear in the text; ASCII texts return at once.
"""

import re
from unicodedata import category

_ZERO_WIDTH = "\u034f\u115f\u1160\u180e\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS = "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
_NEVER = "\u202d\u202e\u206a-\u206f\ufff9-\ufffb\U0001d173-\U0001d17a"
"""Overrides of direction, deprecated format characters, annotations and musical format characters."""
_DIRECTIONS = "\u202a-\u202c\u2066-\u2069"
"""Embeddings and isolates."""

_CANDIDATE = re.compile(f"[{_ZERO_WIDTH}{_SELECTORS}{_TAGS}{_NEVER}{_DIRECTIONS}]")
_UNSEEN = re.compile(f"[\u00ad\u061c\u200e\u200f{_ZERO_WIDTH}{_SELECTORS}{_TAGS}{_NEVER}{_DIRECTIONS}]+")

# A flag of a region: England, Scotland, Wales, the states of the USA, the provinces of Canada.
_TAG_LETTER = "[\U000e0061-\U000e007a]"
_GB, _US, _CA = "\U000e0067\U000e0062", "\U000e0075\U000e0073", "\U000e0063\U000e0061"
_PLACES = ("\U000e0065\U000e006e\U000e0067", "\U000e0073\U000e0063\U000e0074", "\U000e0077\U000e006c\U000e0073")
_FLAG = f"(\U0001f3f4(?:{_GB}(?:{'|'.join(_PLACES)})|(?:{_US}|{_CA}){_TAG_LETTER}{{2}})\U000e007f)"
_TAGGED = re.compile(f"{_FLAG}|[{_TAGS}{_NEVER}]+")

_SELECTED = re.compile(f"[{_SELECTORS}]+")
_HIDDEN = re.compile(f"[{_ZERO_WIDTH}]+")
_DIRECTED = re.compile(f"[{_DIRECTIONS}]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]")

MOST_IN_A_ROW = 2
"""Longest run of zero-width characters allowed outside words; longer runs can encode a hidden text."""

_IDEOGRAPHS = ((0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_MONGOLIAN = (0x1800, 0x18AF)
_EMOJI_BASES = frozenset({"So", "Sm", "Sk", "Po", "Pd", "Nd"})
_TEXT_BASES = frozenset({"Lo", "Sm", "So", "Nd", "Mn", "Mc"})
_INFORMATION = "\u2139"
"""The emoji ℹ, whose category is letter."""


def revealed(text: str) -> str:
    """`text` without hidden characters; the same object if it has none."""
    if text.isascii() or _CANDIDATE.search(text) is None:
        return text
    shown = _TAGGED.sub(r"\1", text)
    if _DIRECTED.search(shown) is not None and not _is_directed(shown):
        shown = _DIRECTED.sub("", shown)
    shown = _SELECTED.sub(_selectors, shown)
    # Last, since what is removed above may have stood between a zero-width character and the letters around it.
    shown = _HIDDEN.sub(_zero_width, shown)
    return text if shown == text else shown


def readable(text: str) -> str:
    """`text` without any invisible character, for comparison with words."""
    return text if text.isascii() else _UNSEEN.sub("", text)


def _selectors(run: re.Match[str]) -> str:
    """The first of a run of variation selectors, if the character before it has such variants."""
    first = run[0][0]
    base = run.string[run.start() - 1 : run.start()]
    if not base:
        return ""
    code, kind = ord(base), category(base)
    if first >= "\U000e0100":
        fits = any(low <= code <= high for low, high in _IDEOGRAPHS)
    elif first <= "\u180f":
        fits = _MONGOLIAN[0] <= code <= _MONGOLIAN[1]
    elif first >= "\ufe0e":
        fits = kind in _EMOJI_BASES or base == _INFORMATION
    else:
        fits = kind in _TEXT_BASES
    return first if fits else ""


def _zero_width(run: re.Match[str]) -> str:
    """The run, unless it is long or splits a word of a script that does not need it."""
    if len(run[0]) > MOST_IN_A_ROW:
        return ""
    before = run.string[run.start() - 1 : run.start()]
    after = run.string[run.end() : run.end() + 1]
    return "" if _is_plain_letter(before) and _is_plain_letter(after) else run[0]


def _is_plain_letter(character: str) -> bool:
    """Whether it is a Latin, Greek or Cyrillic letter: these scripts need no joiners."""
    return character.isalpha() and (character < "\u0530" or "\u1d00" <= character < "\u2000")


def _is_directed(text: str) -> bool:
    """Whether the text contains right-to-left script and all embeddings and isolates are closed."""
    if _RIGHT_TO_LEFT.search(text) is None:
        return False
    open_isolates = open_embeddings = 0
    for mark in _DIRECTED.findall(text):
        if mark in "\u202a\u202b":
            open_embeddings += 1
        elif mark == "\u202c":
            open_embeddings -= 1
        elif mark == "\u2069":
            open_isolates -= 1
        else:
            open_isolates += 1
        if open_isolates < 0 or open_embeddings < 0:
            return False
    return open_isolates == open_embeddings == 0
