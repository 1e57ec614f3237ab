"""The params of `memory/*`. What is malformed is shown over the wire in tests/gateway/test_memory.py."""

import pytest

from app.protocol.errors import InvalidParams
from app.protocol.method_params import MAX_DOCUMENTS, read_build, read_recall


def test_a_build() -> None:
    """Documents stay as they are; the name of the memory is read and left out."""
    documents = [{"id": 1, "text": "", "meta": {}}, {"id": None, "text": "t"}]
    read = read_build({"documents": documents, "memoryId": "m", "scope": "global", "x": None})
    assert (read.memory_id, read.scope) == ("m", "global")
    assert read.raw == {"documents": documents, "scope": "global"}


def test_a_build_over_the_index() -> None:
    """Nothing is required."""
    assert read_build({}) == (None, None, {})


def test_too_many_documents() -> None:
    """Refused before they are looked at one by one."""
    with pytest.raises(InvalidParams) as error:
        read_build({"documents": [None] * (MAX_DOCUMENTS + 1)})
    assert error.value.data["field"] == "documents"


def test_a_recall() -> None:
    """The session is written anew for each engine, `n` goes on."""
    read = read_recall({"query": "q", "n": 3, "sessionId": "s", "memoryId": None, "x-gateway": {}})
    assert read == (None, "s", 3, {"query": "q", "n": 3})
