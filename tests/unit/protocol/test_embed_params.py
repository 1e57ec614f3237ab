"""Whether what an engine answers to `embed` and its kin are vectors."""

from typing import Any

import pytest

from app.protocol.embed_params import checked
from app.protocol.errors import ProtocolViolation


@pytest.mark.parametrize(
    ("method", "key", "vector"),
    [
        ("embed", "vectors", [0.5, 1]),
        ("embed/sparse", "sparse", {"indices": [1, 7], "values": [0.5, 1], "tokens": ["a"]}),
        ("embed/multi", "matrices", [[0.5, 1], [1, 0]]),
    ],
)
def test_vectors_are_passed_on_as_they_came(method: str, key: str, vector: Any) -> None:
    """With their dimension, if it is one."""
    result = {key: [vector], "dimension": 2}
    assert checked(result, method, 1, None) is result
    assert checked({key: [vector], "dimension": "two"}, method, 1, None) == {key: [vector]}


@pytest.mark.parametrize(
    ("method", "key", "vector"),
    [
        ("embed", "vectors", [0.5, "1"]),
        ("embed", "vectors", [0.5, None]),
        ("embed", "vectors", "AAAA"),
        ("embed/sparse", "sparse", {"indices": [1], "values": "x"}),
        ("embed/sparse", "sparse", {"indices": [1.5], "values": [1]}),
        ("embed/sparse", "sparse", {"indices": [1, 2], "values": [1]}),
        ("embed/sparse", "sparse", {"values": [1]}),
        ("embed/sparse", "sparse", [1]),
        ("embed/multi", "matrices", [[0.5, "1"]]),
        ("embed/multi", "matrices", [0.5]),
        ("embed/multi", "matrices", {}),
    ],
)
def test_what_is_no_vector_is_no_answer(method: str, key: str, vector: Any) -> None:
    """The engine has failed, so that another one of the same space is asked; the fault names the input."""
    good = {"vectors": [0.5], "sparse": {"indices": [], "values": []}, "matrices": []}[key]
    with pytest.raises(ProtocolViolation, match=f"'{key}' has an entry that is no .*: the one of input 1"):
        checked({key: [good, vector]}, method, 2, None)
