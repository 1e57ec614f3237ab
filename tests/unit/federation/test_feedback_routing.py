"""Who hears of which signal, and how many were recorded at the least."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.methods.feedback import addressed, recorded

ENGINES = {"a": None, "b": None, "n": "n"}


def test_what_is_remembered_comes_before_namespaces() -> None:
    """An id that looks like a namespace's may be another engine's own."""
    signals = [{"hitId": "n:1"}, {"hitId": "n:2"}, {"hitId": 7}]
    mail = addressed(signals, {"n:1": {"a": "n:1"}, "7": {"b": 7.0}}, ENGINES, ENGINES)
    assert mail.engine_requests == {"a": {0: {"hitId": "n:1"}}, "n": {1: {"hitId": "2"}}, "b": {2: {"hitId": 7.0}}}
    assert mail.unrouted == ()


def test_signals_that_nobody_hears() -> None:
    """Their engine takes no feedback, or left."""
    mail = addressed([{"hitId": "n:1"}, {"hitId": "x"}], {"x": {"gone": "x"}}, ENGINES, ["a"])
    assert (mail.engine_requests, mail.unrouted) == ({}, (0, 1))


def test_signals_are_not_changed() -> None:
    """Each letter holds fresh objects."""
    signal = {"hitId": "n:1", "used": True}
    mail = addressed([signal], {}, ENGINES, ENGINES)
    assert mail.engine_requests["n"][0] == {"hitId": "1", "used": True}
    assert signal == {"hitId": "n:1", "used": True}


def test_recorded() -> None:
    """Who recorded all of what it got settles these; a part counts beyond them."""
    engine_requests = {"a": [0, 1, 2], "b": [2, 3], "c": [3, 4]}
    assert recorded(engine_requests, {"a": 3}) == 3
    assert recorded(engine_requests, {"a": 3, "b": 1}) == 3
    assert recorded(engine_requests, {"a": 3, "b": 2}) == 4
    assert recorded(engine_requests, {"a": 3, "c": 1}) == 4
    assert recorded(engine_requests, {"b": 1, "c": 1}) == 1
    assert recorded(engine_requests, {}) == 0


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.tuples(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))))
def test_never_more_than_is_sure(told: dict[str, tuple[set[int], set[int]]]) -> None:
    """Whichever signals engines really recorded, it is no more than these, and no less than any engine says."""
    engine_requests = {engine: sent for engine, (sent, _) in told.items()}
    truly = {engine: sent & kept for engine, (sent, kept) in told.items()}
    accepted = {engine: len(kept) for engine, kept in truly.items()}
    count = recorded(engine_requests, accepted)
    assert count <= len(set().union(*truly.values()))
    assert count >= max(accepted.values(), default=0)


def test_the_bound_holds_for_every_way_to_record() -> None:
    """Tried out for two engines with overlapping signals."""
    engine_requests = {"a": [0, 1], "b": [1, 2]}
    for a, b in product([{0}, {1}, {0, 1}, set()], [{1}, {2}, {1, 2}, set()]):
        assert recorded(engine_requests, {"a": len(a), "b": len(b)}) <= len(a | b)
