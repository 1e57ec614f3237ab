"""Chance that makes values nobody means: JSON of odd shapes, bytes with a bite taken out, headers that lie.

Everything is drawn from a `random.Random`: a plain one for a long run, Hypothesis' own in the suite, which makes a case
that fails as small as it gets.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

Json = dict[str, Any]

ODD_NUMBERS = (0, -1, 1, 2, 10, 2**31, 2**53, 2**53 + 1, 2**64, -(2**63), 0.5, -0.0, 1e308, 1e-320, 1.0, 7)
ODD_TEXTS = (
    *(
        "",
        " ",
        "q",
        "a" * 300,
        "ä€𝄞",
        "\u0000",
        "\u202e\u2066",
        "\ud83d\ude00",
        "null",
        "NaN",
        "../..",
        "a/b",
        "x-acme/rank",
    ),
    *(
        "-32010",
        "${HOME}",
        "%s%n",
        "<script>",
        "' OR 1=1",
        "\r\nX: y",
        "notifications/cancel",
        "1",
        "rrf",
        "red",
        "blue",
    ),
)
ODD_CONSTANTS = (None, True, False, [], {}, [[]], [None], {"": None}, [{}], {"text": "t"})


def value(chance: Random, depth: int = 2) -> Any:
    """Any JSON value, hardly ever what is wanted."""
    kind = chance.randrange(8 if depth else 5)
    if kind < 2:
        return chance.choice(ODD_NUMBERS)
    if kind < 4:
        return chance.choice(ODD_TEXTS)
    if kind == 4:
        return chance.choice(ODD_CONSTANTS)
    if kind == 5:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {chance.choice(ODD_TEXTS): value(chance, depth - 1) for _ in range(chance.randrange(4))}
    return deep(chance.choice((2, 3, 4, 5) * 10 + (40,) * 8 + (130, 1100)))


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


def bent(chance: Random, whole: Any, odds: float = 0.15) -> Any:
    """`whole` with some of its parts replaced, left out, doubled or renamed."""
    if chance.random() < odds / 2:
        return value(chance)
    if isinstance(whole, dict):
        made = {name: bent(chance, part, odds) for name, part in whole.items() if chance.random() > odds / 4}
        if chance.random() < odds:
            made[chance.choice(ODD_TEXTS)] = value(chance, 1)
        return made
    if isinstance(whole, list):
        parts = [bent(chance, part, odds) for part in whole]
        return parts * chance.choice((1,) * 18 + (2, 5))
    return whole


def text_of(chance: Random, document: Any) -> bytes:
    """JSON as some writer might write it."""
    try:
        written = json.dumps(document, ensure_ascii=chance.random() < 0.5)
        return written.encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 1100 + b"]" * 1100


def bitten(chance: Random, data: bytes) -> bytes:
    """`data` with up to three bites: a byte changed, a piece gone, doubled, or put in the wrong place."""
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))):
        at = chance.randrange(len(data) + 1)
        size = chance.choice((1, 1, 2, 7, 40))
        kind = chance.randrange(5)
        if kind == 0:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + size :]
        elif kind == 2:
            data = data[: at + size] + data[at:]
        elif kind == 3:
            data = (
                data[:at]
                + chance.choice((b"\x00", b"\r\n", b"\n\n", b'"', b"{", b"]", b"\xff\xfe", b"NaN", b"1e999"))
                + data[at:]
            )
        else:
            data = data[:at]
    return data


def pieces(chance: Random, data: bytes) -> list[bytes]:
    """`data` as it may arrive: whole, or in a few pieces."""
    if not data or chance.random() < 0.6:
        return [data]
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.choice((1, 2, 5))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def one_of(chance: Random, *weighted: tuple[int, Any]) -> Any:
    """One of the values, by weight."""
    place = chance.randrange(sum(weight for weight, _ in weighted))
    for weight, made in weighted:
        place -= weight
        if place < 0:
            return made
    raise AssertionError("weights that do not add up")


def picked(chance: Random, choices: Sequence[bytes], odds: float) -> list[bytes]:
    """Some of the choices."""
    return [choice for choice in choices if chance.random() < odds]


def chance_id(chance: Random, call_id: Any) -> Any:
    """The id of a call, or nearly."""
    return call_id if chance.random() < 0.95 else chance.choice((None, f"{call_id}", 0, -1, [call_id], 1e300))
