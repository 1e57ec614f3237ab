"""Trust of a merged document."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fusion.trust import capped, distrusted, merged_trust, suspected

LEVELS = ("untrusted", "community", "trusted")
statements = st.one_of(
    st.none(),
    st.just("no object"),
    st.fixed_dictionaries(
        {"level": st.sampled_from([*LEVELS, "super", None, 3, []])},
        optional={"injectionSuspected": st.booleans(), "score": st.floats(0, 1)},
    ),
)


@given(statements, st.lists(statements, max_size=4))
def test_no_statement_is_ever_raised(own: Any, others: list[Any]) -> None:
    """The level is not above any that a copy states, a suspicion stays, and nothing given is changed."""
    before = repr((own, others))
    result = merged_trust(own, others)
    assert repr((own, others)) == before
    stated = [trust for trust in (own, *others) if isinstance(trust, dict)]
    level = result.get("level") if isinstance(result, dict) else None
    if isinstance(level, str) and level in LEVELS:
        known = [trust["level"] for trust in stated if isinstance(trust["level"], str) and trust["level"] in LEVELS]
        assert all(LEVELS.index(level) <= LEVELS.index(other) for other in known)
    if any(trust.get("injectionSuspected") is True for trust in stated):
        assert result["injectionSuspected"] is True


@pytest.mark.parametrize("others", [[], [None], [{"level": "trusted"}], [{"level": "community"}], ["x"]])
def test_what_nothing_changes_is_handed_through(others: list[Any]) -> None:
    """The kept copy's own object, unknown keys included, where nobody is more cautious."""
    own = {"level": "community", "score": 0.5, "x": 1}
    assert merged_trust(own, others) is own


def test_a_lower_level_is_taken_over() -> None:
    """Only the level changes."""
    assert merged_trust({"level": "trusted", "score": 0.9}, [{"level": "community", "score": 0.1}]) == {
        "level": "community",
        "score": 0.9,
    }


def test_a_silent_copy_is_never_vouched_for() -> None:
    """Without a level of its own, another's word counts only as distrust."""
    assert merged_trust(None, [{"level": "trusted"}, {"level": "community"}]) is None
    assert merged_trust(None, [{"level": "trusted"}, {"level": "untrusted"}]) == {"level": "untrusted"}
    assert merged_trust(None, [{"level": "trusted", "injectionSuspected": True}]) == {
        "level": "untrusted",
        "injectionSuspected": True,
    }


@pytest.mark.parametrize(
    ("trust", "highest", "expected"),
    [
        ({"level": "trusted", "score": 1}, "community", {"level": "community", "score": 1}),
        ({"level": "trusted"}, "untrusted", {"level": "untrusted"}),
        ({"level": "untrusted"}, "trusted", {"level": "untrusted"}),
        (None, "community", None),
        (None, "untrusted", {"level": "untrusted"}),
        ("odd", "community", "odd"),
        ({"level": ["x"]}, "untrusted", {"level": "untrusted"}),
        ({"level": "unrouted-of"}, "community", {"level": "unrouted-of"}),
    ],
)
def test_an_engine_is_trusted_no_further_than_allowed(trust: Any, highest: str, expected: Any) -> None:
    """A level above the registry's is lowered; where none is stated nothing is raised."""
    assert capped(trust, highest) == expected


def test_suspicion_claims_no_trust() -> None:
    """What is suspected keeps its level or has the lowest; what was reported has the lowest."""
    assert suspected({"level": "community"}) == {"level": "community", "injectionSuspected": True}
    assert suspected(None) == {"level": "untrusted", "injectionSuspected": True}
    assert distrusted({"level": "trusted", "score": 1}) == {
        "level": "untrusted",
        "score": 1,
        "injectionSuspected": True,
    }
