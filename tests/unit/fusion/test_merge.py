"""The fused hit."""

from typing import Any

import pytest

from app.fusion.merge import FusedList
from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse


def merged(*copies: dict[str, Any], **wishes: Any) -> dict[str, Any]:
    """One document as engines a, b, c … returned it, fused."""
    lists = [
        RankedList(engine, [{"id": "d", "score": 1.0, **copy}], **wishes)
        for engine, copy in zip("abcdef", copies, strict=False)
    ]
    (hit,) = fuse(lists, FusionConfig()).hits()
    return hit


def test_the_marks_of_a_fused_hit() -> None:
    """Origin, rank and raw score of the kept copy, the sum, and every contributor in the order of engine ids."""
    b = RankedList("b", [{"id": "z", "score": 9}, {"id": 1, "score": 7, "confidence": 0.5, "text": "long"}])
    a = RankedList("a", [{"id": "1", "score": 0.25}])
    hit = next(hit for hit in fuse([b, a], FusionConfig(confidence_weight=0)).hits() if hit["id"] == 1)
    assert hit["meta"] == {
        "engine": "b",
        "engineRank": 2,
        "engineScore": 7,
        "fusedScore": pytest.approx(1 / 61 + 1 / 62),
        "engines": [{"id": "a", "rank": 1, "score": 0.25}, {"id": "b", "rank": 2, "score": 7, "confidence": 0.5}],
    }


def test_the_id_keeps_the_json_type_of_the_kept_copy() -> None:
    """1 and "1" are one document; 1.0 is another."""
    lists = [RankedList("a", [{"id": "1", "score": 1}]), RankedList("b", [{"id": 1, "score": 1, "text": "x"}])]
    (hit,) = fuse(lists, FusionConfig()).hits()
    assert type(hit["id"]) is int
    assert len(fuse([*lists, RankedList("c", [{"id": 1.0, "score": 1}])], FusionConfig())) == 2


def test_fields_nobody_knows_are_carried_through() -> None:
    """Whatever the kept copy holds besides is handed on untouched."""
    own = {
        "x-acme": {"deep": [1]},
        "vector": [0.1],
        "scores": {"bm25": 3},
        "provenance": {"path": ["p"]},
        "unit": "page",
    }
    hit = merged({"text": "long", **own}, {"x-other": 1, "vector": [9], "scores": {"dense": 1}})
    assert {name: hit[name] for name in own} == own
    assert "x-other" not in hit
    assert hit["x-acme"] is own["x-acme"]


def test_meta_is_merged() -> None:
    """The kept copy's keys win, then the others' in the order of engine ids; our own marks are ours."""
    hit = merged(
        {"meta": {"k": "a", "only-a": 1, "shared": "a"}},
        {"meta": {"k": "b", "engine": "inner", "fusedScore": 99}, "text": "long"},
        {"meta": {"shared": "c", "only-c": 1}},
        {"meta": "no object"},
        {"meta": None},
    )
    assert hit["meta"]["k"] == "b"
    assert hit["meta"]["shared"] == "a"
    assert (hit["meta"]["only-a"], hit["meta"]["only-c"], hit["meta"]["engine"]) == (1, 1, "b")
    assert hit["meta"]["fusedScore"] < 1


def test_a_meta_that_is_no_object_makes_room() -> None:
    """The fused hit has our marks in any case."""
    assert merged({"meta": [1]})["meta"]["engine"] == "a"


def test_confidence_is_the_mean_by_weight_of_what_was_claimed() -> None:
    """0.9 with weight 3 and 0.2 with weight 1; the contributors keep the raw values."""
    lists = [
        RankedList("a", [{"id": 1, "score": 1, "confidence": 0.9}], weight=3.0),
        RankedList("b", [{"id": 1, "score": 1, "confidence": 0.2}]),
        RankedList("c", [{"id": 1, "score": 1}], weight=9.0),
    ]
    (hit,) = fuse(lists, FusionConfig()).hits()
    assert hit["confidence"] == pytest.approx((3 * 0.9 + 0.2) / 4)
    assert [mark.get("confidence") for mark in hit["meta"]["engines"]] == [0.9, 0.2, None]


def test_confidence_without_weights_is_the_plain_mean() -> None:
    """Engines that add nothing to scores still say what they believe."""
    assert merged({"confidence": 0.2}, {"confidence": 0.4}, weight=0.0)["confidence"] == pytest.approx(0.3)


@pytest.mark.parametrize("lie", [True, float("nan"), 1.5, -0.1, "0.9", None])
def test_confidence_is_absent_where_nobody_gave_a_valid_one(lie: Any) -> None:
    """An invalid value is not handed on."""
    assert "confidence" not in merged({"confidence": lie})
    assert merged({"confidence": lie}, {"confidence": 0.25})["confidence"] == 0.25


def test_contributors_keep_the_number_that_was_sent() -> None:
    """An integer confidence stays one in `meta.engines`, of a document of one engine and of one of several."""
    for copies in ([{"confidence": 1}], [{"confidence": 1}, {"confidence": 0}]):
        marks = merged(*copies)["meta"]["engines"]
        assert [(type(mark["confidence"]), mark["confidence"]) for mark in marks] == [
            (int, copy["confidence"]) for copy in copies
        ]


def test_full_confidence_of_everyone_is_exactly_one() -> None:
    """No rounding on the way."""
    assert merged(*[{"confidence": 1.0}] * 6, weight=0.1)["confidence"] == 1.0


def test_a_citation_is_taken_from_another_copy_if_the_kept_one_has_none() -> None:
    """The first engine that cites, by id."""
    cited = [{"citation": {"uri": "b"}}, {"citation": {"uri": "c"}}]
    assert merged({"text": "long"}, *cited)["citation"] == {"uri": "b"}
    assert merged({"text": "long", "citation": {"uri": "a"}}, *cited)["citation"] == {"uri": "a"}
    assert merged({"text": "long", "citation": "no object"}, *cited)["citation"] == {"uri": "b"}


def test_trust_is_never_raised() -> None:
    """The body of an untrusted engine stays untrusted whoever else vouches for the id."""
    level = {name: {"trust": {"level": name}} for name in ("trusted", "community", "untrusted")}
    assert merged({"text": "long", **level["untrusted"]}, level["trusted"])["trust"]["level"] == "untrusted"
    assert merged({"text": "long", **level["trusted"]}, level["community"])["trust"]["level"] == "community"
    assert "trust" not in merged({"text": "long"}, level["trusted"])


def test_a_namespace_shows_in_the_id() -> None:
    """Unrelated corpora that both number from 1 stay apart."""
    lists = [RankedList("a", [{"id": 1, "score": 1}], namespace="docs"), RankedList("b", [{"id": 1, "score": 1}])]
    assert sorted(str(hit["id"]) for hit in fuse(lists, FusionConfig()).hits()) == ["1", "docs:1"]


def test_twelve_hits_that_are_ten_documents() -> None:
    """Asking for more than there is gives what there is; nothing is counted twice."""
    a = RankedList("a", [{"id": key, "score": 1} for key in range(6)])
    b = RankedList("b", [{"id": key, "score": 1} for key in range(4, 10)])
    fusion = fuse([a, b], FusionConfig())
    assert (len(fusion), fusion.duplicates, len(fusion.hits(0, 12))) == (10, 2, 10)


def _three() -> FusedList:
    hits = [{"id": key, "score": 1, "text": f"text of {key}"} for key in ("x", "y", "z")]
    return fuse([RankedList("a", hits), RankedList("b", hits[:1])], FusionConfig())


def test_pick_keeps_what_it_is_told_in_that_order() -> None:
    """Scores and marks stay those of the whole fusion."""
    fusion = _three()
    picked = fusion.pick([2, 0])
    assert picked.keys() == ["z", "x"]
    assert picked.hits() == [fusion.hits()[2], fusion.hits()[0]]
    assert (len(picked), picked.duplicates, picked.method) == (2, 1, "rrf")


def test_the_text_of_a_document_is_that_of_its_kept_copy() -> None:
    """Readable without building the hit."""
    assert _three().text(1) == "text of y"


def test_fusion_tells_what_it_is() -> None:
    """Its repr names method, engines with their hits, and how many documents came of them."""
    assert repr(_three()) == "<FusedList rrf of a:3, b:1: 3 unique, 1 duplicate>"
    assert repr(fuse([], FusionConfig("weighted"))) == "<FusedList weighted of nothing: 0 unique, 0 duplicate>"


APART = ("the quick brown fox jumps over a lazy dog", "quarterly revenue grew by seven percent worldwide")


def _shared(one: Any, other: Any, **wishes: Any) -> FusedList:
    lists = [
        RankedList(engine, [{"id": 7, "score": 1, "text": text}], **wishes)
        for engine, text in (("b", one), ("a", other))
    ]
    return fuse(lists, FusionConfig())


def test_one_id_with_two_texts_is_a_collision() -> None:
    """Named once, engines in order."""
    assert _shared(*APART).collisions(0, 10) == [("a", "b")]


def test_collisions_are_looked_for_only_where_asked() -> None:
    """Outside the slice, beyond so many copies and under other identities nothing is looked at."""
    fusion = _shared(*APART)
    assert fusion.collisions(1, 10) == []
    assert fusion.collisions(0, 10, most=0) == []
    hits = [{"id": 7, "score": 1, "text": text, "citation": {"uri": "u"}} for text in APART]
    by_uri = fuse([RankedList("a", hits[:1]), RankedList("b", hits[1:])], FusionConfig(identity="uri"))
    assert (len(by_uri), by_uri.collisions()) == (1, [])
