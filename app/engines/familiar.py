"""The head of answers as one peer writes them: told again from the next answer's first bytes, without parsing it.

Engines room. What the HTTP parser has read once and found to say nothing but a length means the same when it comes
again, byte for byte but for that length. It decides whether an answer is such a one, and whole; any other is the
parser's. It refuses to know what a head says.
"""

from typing import Final

MAX_MISSES: Final = 32
"""So many heads in a row that were none of those before are learned; a peer that never repeats itself is left alone."""

_NAME: Final = b"\r\ncontent-length:"


class Familiar:
    """One head, but for the digits of the length that it states."""

    __slots__ = ("_after", "_before", "_misses", "_size")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._size = 0
        self._misses = 0

    def body(self, data: bytes) -> bytes | None:
        """The body if `data` is this head and all of the body that it announces, and nothing more; None if not."""
        if not self._size:
            return None
        rest = len(data) - self._size
        length = rest - len(b"%d" % rest)
        if length <= 0:
            return None
        head = b"%b%d%b" % (self._before, length, self._after)
        if len(head) + length != len(data) or not data.startswith(head):
            return None
        self._misses = 0
        return data[len(head) :]

    def learn(self, data: bytes, length: int) -> None:
        """`data` was a whole answer whose head says no more than that a body of `length` bytes follows."""
        if self._misses >= MAX_MISSES:
            return
        self._misses += 1
        head = data[: len(data) - length]
        at = head.lower().find(_NAME)
        stated = b"%d" % length
        start = head.find(stated, at + len(_NAME))
        if at < 0 or start < 0 or head[at + len(_NAME) : start].strip(b" \t"):
            return
        self._before, self._after = head[:start], head[start + len(stated) :]
        self._size = len(head) - len(stated)

    def __repr__(self) -> str:
        known = f"{self._size} bytes and a length" if self._size else "nothing"
        return f"<Familiar with {known}, {self._misses} misses>"
