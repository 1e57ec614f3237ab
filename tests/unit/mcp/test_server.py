"""The place of a request at the gate; the methods are tested through a whole gateway (tests/gateway/test_mcp.py)."""

from app.mcp.server import AdmissionSlot


def test_a_place_is_left_once() -> None:
    """Whoever comes second changes nothing."""
    left: list[int] = []
    place = AdmissionSlot(lambda: left.append(1))
    assert repr(place) == "<Place taken>"
    place.leave()
    place.leave()
    assert left == [1]
    assert repr(place) == "<Place left>"
