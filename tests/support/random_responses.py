"""Random results of several engines for `graph` and `memory/recall`, for tests of how they are merged."""

from typing import Any

from hypothesis import strategies as st

from app.federation.response_merge import EngineResponse

IDS = st.sampled_from(["a", "b", "1", 1, 2.5, "e1:a", "n:a", "e2:e1:a"])
SCORES = st.one_of(st.none(), st.sampled_from([0, 0.5, 1, -1.0, 3]))
WORDS = st.sampled_from(["Why?", "why?", "Why  so?", "What?"])


def _object(**fields: Any) -> Any:
    """An object with these fields, None left out."""
    made = st.fixed_dictionaries(fields)
    return made.map(lambda one: {key: value for key, value in one.items() if value is not None})


COMMUNITIES = st.lists(_object(id=IDS, score=SCORES), max_size=4)
NODES = st.lists(_object(id=IDS, score=SCORES, label=st.sampled_from([None, "x", "y"])), max_size=4)
EDGES = st.lists(_object(src=IDS, dst=IDS, weight=SCORES, type=st.sampled_from([None, "t"])), max_size=4)
CLUES = st.lists(
    _object(query=WORDS, weight=SCORES, seedIds=st.one_of(st.none(), st.lists(IDS, max_size=2))), max_size=4
)
FOLLOWUPS = st.lists(WORDS, max_size=4)

RESULTS = st.fixed_dictionaries(
    {
        "communities": COMMUNITIES,
        "nodes": NODES,
        "edges": EDGES,
        "clues": CLUES,
        "followups": FOLLOWUPS,
        "summary": st.sampled_from(["", "All.", "Some."]),
    }
)


@st.composite
def responses(draw: Any) -> list[EngineResponse]:
    """Up to four engines, in any order."""
    names = draw(st.lists(st.sampled_from(["e1", "e2", "e3", "n"]), unique=True, max_size=4))
    return [
        EngineResponse(
            name, draw(RESULTS), draw(st.sampled_from([0, 0, 5])), draw(st.sampled_from([None, None, "n", "m"]))
        )
        for name in names
    ]
