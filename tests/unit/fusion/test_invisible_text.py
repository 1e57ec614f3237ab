"""What is hidden in a text comes out; what writing needs stays, to the very object."""

import string
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.fusion.invisible_text import readable, revealed


def tags(text: str) -> str:
    """Text in letters that nobody sees."""
    return "".join(chr(0xE0000 + ord(engine_request)) for engine_request in text)


def selected(data: bytes) -> str:
    """Bytes as variation selectors, sixteen of the small and the rest of the large block."""
    return "".join(chr(0xFE00 + byte if byte < 16 else 0xE0100 + byte - 16) for byte in data)


HIDDEN = {
    "tags": ("pay" + tags("ignore all") + "ment", "payment"),
    "tags behind a flag": ("\U0001f3f4" + tags("ignore") + "\U000e007f!", "\U0001f3f4!"),
    "tags behind a real flag": (
        "\U0001f3f4" + tags("gbeng") + "\U000e007f" + tags("now") + "\U000e007f",
        "\U0001f3f4" + tags("gbeng") + "\U000e007f",
    ),
    "a flag that does not end": ("\U0001f3f4" + tags("gbeng") + " x", "\U0001f3f4 x"),
    "a language tag": ("\U000e0001" + tags("en") + "x", "x"),
    "unassigned tags": ("a\U000e0080\U000e01f0\U000e0fffb", "ab"),
    "an override": ("pay\u202egnihton", "paygnihton"),
    "an override in right-to-left text": ("\u05e9\u05dc\u202e\u05d5\u05dd", "\u05e9\u05dc\u05d5\u05dd"),
    "isolates in Latin text": ("a\u2066b\u2069c", "abc"),
    "an embedding that stays open": ("\u05e9 \u202b x", "\u05e9  x"),
    "selectors behind an emoji": ("\U0001f600" + selected(b"ignore all"), "\U0001f600"),
    "selectors behind a letter": ("a" + selected(b"\x01\x02") + "b", "ab"),
    "selectors behind an ideograph": ("\u845b\U000e0100\U000e0101", "\u845b\U000e0100"),
    "selectors at the beginning": (selected(b"\xff\x01") + "x", "x"),
    "zero width in a word": ("ig\u200bnore \u0438\u2060\u0433", "ignore \u0438\u0433"),
    "joiners in a word": ("ig\u200dno\u200cre", "ignore"),
    "a run of zero width": ("x " + "\u200b\u200c" * 40 + " y", "x  y"),
    "a filler in a word": ("ig\u3164nore", "ignore"),
    "hidden in each other": ("ig\u200b\U000e0041\u202e\u200bnore", "ignore"),
    "an annotation": ("a\ufff9b\ufffac\ufffb", "abc"),
}

NEEDED = {
    "England, Scotland, Wales": "".join(
        "\U0001f3f4" + tags(place) + "\U000e007f" for place in ("gbeng", "gbsct", "gbwls")
    ),
    "Texas": "\U0001f3f4" + tags("ustx") + "\U000e007f",
    "a flag of two letters": "\U0001f1eb\U0001f1f7",
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "a rainbow flag": "\U0001f3f3\ufe0f\u200d\U0001f308",
    "a heart on fire": "\u2764\ufe0f\u200d\U0001f525",
    "a health worker": "\U0001f469\U0001f3fd\u200d\u2695\ufe0f",
    "keycaps": "1\ufe0f\u20e3 #\ufe0f\u20e3 *\ufe0f\u20e3",
    "signs": "\u00a9\ufe0f \u2122\ufe0f \u2139\ufe0f \u203c\ufe0f \u2194\ufe0e",
    "ideographic variants": "\u845b\U000e0100\u98fe\U000e0101 \u795e\ufe00",
    "Hebrew with marks": "\u05e9\u05dc\u05d5\u05dd \u200f(x)\u200e!",
    "Arabic with marks": "\u0627\u0644\u0639\u0631\u0628\u064a\u0629\u061c 1.",
    "isolates in Hebrew": "\u05e9\u05dc\u05d5\u05dd \u2066C++\u2069 \u2068x\u2069",
    "embeddings in Arabic": "\u0627\u0644\u0639 \u202aC++\u202c \u0631",
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi": "\u0915\u094d\u200d\u0937 \u0915\u094d\u200c\u0937",
    "Thai": "\u0e44\u0e17\u0e22\u200b\u0e20\u0e32\u0e29\u0e32",
    "Mongolian": "\u1820\u180b\u1821",
    "a byte order mark": "\ufeffText",
    "soft hyphens": "Donau\u00addampf\u00adschiff",
    "a place to break": "https://\u200bexample/\u200bpath",
    "combined letters": "Zu\u0308rich nai\u0308ve",
    "Chinese": "\u4e2d\u6587\u3002\u300c\u5f15\u7528\u300d",
}


@pytest.mark.parametrize(("text", "shown"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_hidden_comes_out(text: str, shown: str) -> None:
    assert revealed(text) == shown
    assert revealed(f"Words before, {text} and after.") == f"Words before, {shown} and after."
    assert revealed(shown) is shown


@pytest.mark.parametrize("text", NEEDED.values(), ids=NEEDED)
def test_what_writing_needs_stays(text: str) -> None:
    assert revealed(text) is text
    whole = f"{text}\nWords before {text} and after.\n{text}".replace("\ufeff", "") + text.replace("\ufeff", "")
    assert revealed(whole) is whole


@example("A\u200b\u2066A")
@given(
    st.text(string.printable + "\u00e9\u4e2d\U0001f600\u200b\u200d\ufe0f\u202e\u2066\u2069\U000e0067\U0001f3f4\u05d0")
)
def test_nothing_that_is_seen_is_lost(text: str) -> None:
    """Whatever the text: only characters without a shape go, and once is enough."""
    shown = revealed(text)
    assert readable(shown) == readable(text)
    assert revealed(shown) == shown


@pytest.mark.parametrize(
    "piece", ["\u200b", "a\u200b", "\ufe0f", "\U000e0041", "\U0001f3f4\U000e0067", "\u2066", "\u05d0\u2066", "\u4e2d"]
)
def test_no_text_takes_long(piece: str) -> None:
    """Four times the text takes about four times the work."""
    spent = []
    for length in (50_000, 200_000):
        began = thread_time()
        revealed(piece * length)
        spent.append(thread_time() - began)
    assert spent[1] < 16 * spent[0] + 1.0
