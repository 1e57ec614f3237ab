"""What counts of the capabilities that engines state."""

from app.protocol.advertisement import well_formed


def test_values_of_another_shape_count_as_not_stated() -> None:
    """Types, bounds and members outside RCP's own sets are left out, and what else was said stays."""
    assert well_formed(
        {
            "retrieve": {"maxK": "50", "modes": ["dense", [], "quantum"], "mmr": 1, "scoreFloor": -1, "citations": {}},
            "embed": {"dimension": {}, "identity": "m", "modalities": [["text"], "text"]},
            "filter": {"fields": {"year": "int", "lang": 7}, "operators": [None, "eq"]},
            "rerank": {"models": "all", "maxCandidates": 0},
        }
    ) == {
        "retrieve": {"modes": ["dense"], "scoreFloor": -1, "citations": {}},
        "embed": {"identity": "m", "modalities": ["text"]},
        "filter": {"fields": {"year": "int"}, "operators": ["eq"]},
        "rerank": {},
    }


def test_presence_is_support_whatever_the_value() -> None:
    """What is there and no object is `{}`; null is absent, `false` is taken at its word, and the unknown is kept."""
    stated = {"graph": True, "memory": "yes", "feedback": None, "index": False, "x-acme": 3, "other": None}
    assert well_formed(stated) == {"graph": {}, "memory": {}, "x-acme": 3, "other": None}
