"""The body of an answer: pieces, compression, the cap and its memory, and what a status makes of it."""

import gzip
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.http.body import CHUNK, ResponseBody, read_answer, retry_after_ms
from app.protocol.errors import LegError, ProtocolViolation, ResponseTooLarge

CODINGS = {
    b"gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"Deflate ": lambda data: zlib.compress(data, wbits=-15),
    b"identity": bytes,
}


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.binary(max_size=3000), st.sampled_from(sorted(CODINGS)), st.lists(st.integers(0, 5000), max_size=20))
def test_any_cut_gives_the_whole(data: bytes, coding: bytes, cuts: list[int]) -> None:
    """However a body is compressed and cut into pieces, it comes out whole."""
    body = ResponseBody(3000, coding)
    for piece in _cut(CODINGS[coding](data), cuts):
        body.feed(piece)
    assert bytes(body.finish()) == data


def test_one_piece_is_not_copied() -> None:
    """A body that comes in one piece is that very piece."""
    piece = b"x" * 1000
    body = ResponseBody(1000)
    body.feed(piece)
    assert body.finish() is piece


@pytest.mark.parametrize("coding", sorted(CODINGS))
def test_cap_is_exact(coding: bytes) -> None:
    """As many bytes as the cap pass, one more does not."""
    whole = ResponseBody(100_000, coding)
    whole.feed(CODINGS[coding](bytes(100_000)))
    assert len(whole.finish()) == 100_000
    with pytest.raises(ResponseTooLarge, match="larger than 100000 bytes"):
        ResponseBody(100_000, coding).feed(CODINGS[coding](bytes(100_001)))


def test_bomb_costs_no_memory() -> None:
    """Sixty-four megabytes in a few hundred kilobytes stop at the cap and one chunk."""
    packer = zlib.compressobj(1, wbits=31)
    block = bytes(1 << 20)
    bomb = b"".join(packer.compress(block) for _ in range(64)) + packer.flush()
    cap = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ResponseTooLarge):
            ResponseBody(cap, b"gzip").feed(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < cap * 1.25 + 2 * CHUNK  # the body grows by an eighth ahead


@pytest.mark.parametrize(
    ("coding", "data", "text"),
    [
        pytest.param(b"gzip", b"no gzip at all", "damaged", id="no gzip"),
        pytest.param(b"deflate", b"\xff\xff\xff\xff", "damaged", id="no deflate"),
        pytest.param(b"gzip", gzip.compress(bytes(1000))[:-8] + bytes(8), "damaged", id="wrong checksum"),
        pytest.param(b"gzip", gzip.compress(b"x") + b"more", "after the end", id="more behind it"),
        pytest.param(b"gzip", gzip.compress(b"x") + gzip.compress(b"y"), "after the end", id="two members"),
        pytest.param(b"gzip", gzip.compress(b"x" * 500)[:-1], "ends early", id="truncated"),
    ],
)
def test_damaged_compression(coding: bytes, data: bytes, text: str) -> None:
    """Damaged, truncated or overlong compressed bodies are protocol violations."""

    def read() -> None:
        body = ResponseBody(1000, coding)
        body.feed(data)
        body.finish()

    with pytest.raises(ProtocolViolation, match=text):
        read()


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"\xff"])
def test_coding_that_is_not_understood(coding: bytes) -> None:
    """A content encoding that nobody asked for is refused before any byte of the body."""
    with pytest.raises(ProtocolViolation, match="not requested"):
        ResponseBody(1000, coding)


def test_announced_length() -> None:
    """A length above the cap is refused up front, unless compression makes it mean something else."""
    ResponseBody(1000).expect(1000)
    ResponseBody(1000, b"gzip").expect(1001)
    with pytest.raises(ResponseTooLarge):
        ResponseBody(1000).expect(1001)


def test_state_is_readable() -> None:
    """An incident shows how far a body has come."""
    body = ResponseBody(10)
    body.feed(b"1234")
    assert repr(body) == "<ResponseBody 4/10 bytes>"


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        (None, None),
        (b"0", 0),
        (b" 120 ", 120_000),
        (b"9" * 5000, 999_999_999_000),
        (b"-1", None),
        (b"1.5", None),
        (b"Thu, 01 Jan 1970 00:01:00 GMT", 50_000),
        (b"Thu, 01 Jan 1970 00:01:00 -0000", 50_000),
        (b"Thu, 01 Jan 1970 00:00:01 GMT", 0),
        (b"tomorrow", None),
        ("١".encode(), None),
        (b"\xff\xfe", None),
    ],
)
def test_retry_after(value: bytes | None, wait_ms: int | None) -> None:
    """Seconds and HTTP dates become milliseconds from now; anything else is as if it were not there."""
    assert retry_after_ms(value, now=lambda: 10.0) == wait_ms


@given(st.integers(100, 599), st.binary(max_size=60), st.none() | st.binary(max_size=30))
def test_whatever_is_answered_is_a_result_or_a_engine_call_error(
    status: int, body: bytes, retry_after: bytes | None
) -> None:
    """No status, body and header together raise anything but LegError."""
    try:
        result = read_answer(status, body, retry_after, 1)
    except LegError:
        return
    assert isinstance(result, dict)
