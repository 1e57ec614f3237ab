"""Estimate of the time to parse a JSON text, from its bytes alone, before it is parsed. Pure.

A megabyte of prose parses in a millisecond, a megabyte of empty objects in a hundred, and parsing blocks the event
loop. The estimate is a weighted count of commas, brackets and names.
"""

MEMBER = 1
"""Weight of a comma, standing for a value: about a tenth of a microsecond of parsing at worst."""
BOX = 2
"""Of an object or array."""
NAME = 5
"""Of a name in an object, which must be made and looked up."""

MAX_REQUEST_WEIGHT = 100_000
"""Some ten milliseconds of parsing and checking. A text of no more bytes than that is not weighed."""

MAX_ANSWER_WEIGHT = 640_000
"""Less than a tenth of a second: 400 hits with vectors of 1536 numbers each. A text of no more bytes is not weighed."""

MAX_STRINGS = 100_000
"""In a text with more of them they are not told from what stands between: that would take longer than parsing."""


STRIDE = 8192
BLOCK = 512
"""Of a long text one block in each stride is weighed first, at a place that its writer cannot foresee."""

MARGIN = 2.0
"""How much heavier than its sample a text may be. No text weighs much more than 1 to a byte, so one that is too heavy
is dense over more than sixty strides: that less than half of it shows in the sample does not happen."""


def weight(text: bytes | bytearray) -> int:
    """The weight of a text; what stands in strings counts as if it did not. Each colon ends a name."""
    boxes = text.count(b"{") + text.count(b"[")
    return MEMBER * text.count(b",") + BOX * boxes + NAME * text.count(b":")


def weight_outside_strings(text: bytes) -> int | None:
    """The weight of a text without what stands in strings, at several times the work; None if they are too many."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * MAX_STRINGS:
        return None
    pieces = bare.split(b'"')
    return weight(b"".join(pieces[::2]))


def seems_light(text: bytes | bytearray, most: int, salt: bytes = b"") -> bool:
    """Whether a sample says that a text weighs no more than `most`: a tenth of the work of weighing it, or less."""
    # Python's hash of bytes has a secret key, another one in each process: nobody outside can foresee the places.
    name = b"%b %d" % (salt, len(text))
    places = (start + hash(b"%b %d" % (name, start)) % (STRIDE - BLOCK) for start in range(0, len(text), STRIDE))
    sample = b"".join([text[place : place + BLOCK] for place in places])
    return weight(sample) * (STRIDE / BLOCK) * MARGIN <= most


def is_heavy(text: bytes | bytearray, most: int) -> bool:
    """Whether a text weighs more than `most`. What stands in strings is held against it only if they are many."""
    if len(text) <= most or weight(text) <= most:
        return False
    exact = weight_outside_strings(bytes(text))
    return exact is None or exact > most
