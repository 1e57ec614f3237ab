"""Whose an id is, as far as namespaces tell."""

from app.federation.id_routing import namespaces_of, owners_of, seeds_for, split_id

ENGINES = {"docs": "d", "more": "d", "code": "c", "wiki": None}


def test_a_prefix_is_a_namespace_only_if_there_is_one() -> None:
    """Anything else with a colon is an id like any other."""
    known = namespaces_of(ENGINES.values())
    assert known == {"c", "d"}
    assert split_id("d:1", known) == ("d", "1")
    assert split_id("d:1:2", known) == ("d", "1:2")
    assert split_id("e:1", known) == (None, "e:1")
    assert split_id("d:", known) == (None, "d:")
    assert split_id(7, known) == (None, 7)


def test_owners() -> None:
    """All engines of the namespace; without one, all that have none."""
    known = namespaces_of(ENGINES.values())
    assert owners_of("d:1", ENGINES, known) == {"docs": "1", "more": "1"}
    assert owners_of("x", ENGINES, known) == {"wiki": "x"}


def test_where_every_engine_has_a_namespace() -> None:
    """An id without one may be anybody's: people name nodes without knowing of namespaces."""
    assert owners_of("x", {"a": "n", "b": "m"}, frozenset({"n", "m"})) == {"a": "x", "b": "x"}


def test_seeds_of_one_engine() -> None:
    """Under its own ids, in the caller's order."""
    seeds = ["d:2", "c:1", 7, "d:1"]
    assert seeds_for("docs", seeds, ENGINES) == ["2", "1"]
    assert seeds_for("wiki", seeds, ENGINES) == [7]
