"""Odd fields of hits are left out of what is served, and the caller is told."""

from typing import Any

import pytest

from app.federation.hit_validation import MIN_PARTS, PARTS_OF_A_HIT, _Budget, relayed, sanitized


def served(engine: str = "e", **more: Any) -> dict[str, Any]:
    """A hit as fusion makes it."""
    return {"id": "a", "score": 0.5, "meta": {"engine": engine}, **more}


WELL_TEXT = {"type": "text", "text": "t"}
WELL: dict[str, Any] = {
    "text": "t",
    "content": [{"type": "image", "uri": "u", "mimeType": "image/png"}],
    "modality": "text",
    "unit": "chunk",
    "level": 0,
    "vector": [0.5, 1],
    "scores": {"dense": 1},
    "citation": {"source": "s", "start": 0, "end": 4, "page": 1, "other": []},
    "provenance": {"path": ["a"], "edges": [{"src": "a", "dst": "b", "label": "l"}]},
    "trust": {"level": "trusted", "score": 1, "injectionSuspected": False},
    "chunk": {"docId": "d", "index": 1},
    "x-other": None,
}


def test_well_formed_hits_stay_as_they_are() -> None:
    """Unknown fields included; nothing is noted."""
    hit = served(**WELL)
    parts = {name: id(value) for name, value in hit.items()}
    assert sanitized([hit, served()]) == []
    assert {name: id(value) for name, value in hit.items()} == parts


@pytest.mark.parametrize(
    ("name", "sent", "left"),
    [
        ("text", 5, None),
        ("content", "t", None),
        ("content", [{"type": "text", "text": 1}, {"type": "film"}, "t", {"type": "text", "text": "t"}], [WELL_TEXT]),
        ("content", [{"type": "image", "uri": "u"}, {"type": "audio", "mimeType": "a/b"}], []),
        ("modality", ["text"], None),
        ("unit", "stanza", None),
        ("level", -1, None),
        ("vector", [0.5, "1"], None),
        ("scores", {"dense": "high", "sparse": 1}, {"sparse": 1}),
        ("citation", "s", None),
        ("citation", {"source": "s", "uri": ["u"]}, {"source": "s"}),
        ("citation", {"title": "t", "page": "xii"}, {"title": "t"}),
        ("provenance", {"edges": [{"src": "a"}], "path": "a"}, {"edges": []}),
        ("trust", [], None),
        ("trust", {"level": "root", "injectionSuspected": True}, {"level": "untrusted", "injectionSuspected": True}),
        ("trust", {"sanitized": True}, {"level": "untrusted", "sanitized": True}),
        ("chunk", {"docId": 7, "index": 1}, {"index": 1}),
    ],
)
def test_what_is_malformed_is_left_out_and_noted(name: str, sent: Any, left: Any) -> None:
    """The rest of the field stays where it can; what the engine sent is not changed."""
    before = repr(sent)
    hit = served(**{"text": "t", name: sent})
    assert sanitized([hit]) == [f"e: malformed fields removed from 1 hit(s): {name}"]
    assert hit.get(name) == left
    assert name in hit or left is None
    assert repr(sent) == before


def test_one_line_for_each_engine() -> None:
    """However many hits and fields; null counts as absent and is no reproach."""
    hits = [served("b", text=1, unit=2), served("a", text=[]), served("b", text=3), served("c", text=None)]
    assert sanitized(hits) == [
        "a: malformed fields removed from 1 hit(s): text",
        "b: malformed fields removed from 2 hit(s): text, unit",
    ]
    assert "text" not in hits[3]


@pytest.mark.parametrize(
    ("name", "part", "many"),
    [
        ("content", [WELL_TEXT], lambda parts: [WELL_TEXT] * parts),
        ("provenance", {"nodes": ["n"]}, lambda parts: {"nodes": ["n"] * (parts - 1)}),
    ],
)
def test_of_too_many_parts_the_last_are_not_looked_at(name: str, part: Any, many: Any) -> None:
    """An engine cannot make everybody wait while its hits are judged; what was not is left out, and that is said."""
    half = MIN_PARTS // 2
    answer = [served(**{name: many(parts)}) for parts in (half, half - 2, 3)] + [served(**{name: part})]
    assert sanitized(answer) == [f"e: malformed fields removed from 1 hit(s): {name}"]
    assert [name in hit for hit in answer] == [True, True, False, True]
    own = {"hits": [{"id": 1, "score": 1, name: many(MIN_PARTS + 1)}]}
    result, _ = relayed("e", own)
    assert result["hits"] == [{"id": 1, "score": 1}]


def test_a_vector_may_be_long() -> None:
    """Numbers are looked at so quickly that nobody waits."""
    hit = served(vector=[0.5] * (MIN_PARTS + 1))
    assert sanitized([hit]) == []
    assert "vector" in hit


def test_more_hits_may_have_more_parts() -> None:
    """Room grows with the answer, and says how much of it is left."""
    hits = 2 * MIN_PARTS // PARTS_OF_A_HIT
    room = _Budget(hits)
    assert room.too_many({"content": [None] * MIN_PARTS, "provenance": "none", "vector": [0] * 10 * MIN_PARTS}) == []
    assert repr(room) == f"<_Budget of {MIN_PARTS} parts>"
    for name, much in (
        ("content", [None] * (MIN_PARTS + 1)),
        ("provenance", {"nodes": [None] * MIN_PARTS}),
    ):
        assert room.too_many({name: much}) == [name]
