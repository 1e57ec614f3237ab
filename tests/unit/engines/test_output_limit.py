"""A stream that nobody asked for: what is read of it without a pause, and when it is too much."""

from app.engines.output_limit import BURST_BYTES, LINE_COST, MOST_BYTES, PAUSE_SECONDS, OutputLimit


def test_a_little_is_read_at_once() -> None:
    """Up to the burst in one second nothing is held up, and the next second has a burst of its own."""
    flood = OutputLimit()
    for now in (0.0, 0.5, 1.0, 1.5):
        flood.swell(BURST_BYTES // 2)
        assert flood.pause(now) == 0
    assert not flood.drowning
    assert repr(flood) == f"<Flood {BURST_BYTES * 2} bytes, {BURST_BYTES} of them weighed in the last second>"


def test_more_is_read_with_pauses() -> None:
    """Beyond the burst each further piece of that second is followed by a pause; silence by none."""
    flood = OutputLimit()
    flood.swell(BURST_BYTES + 1)
    assert flood.pause(10.0) == PAUSE_SECONDS
    assert flood.pause(10.1) == 0
    flood.swell(1)
    assert flood.pause(10.2) == PAUSE_SECONDS


def test_short_lines_weigh_more_than_their_bytes() -> None:
    """What costs time is the number of lines, so they are a flood sooner."""
    flood = OutputLimit()
    flood.swell(20_000, lines=BURST_BYTES // LINE_COST)
    assert flood.pause(0.0) == PAUSE_SECONDS


def test_too_much_without_an_answer_is_too_much() -> None:
    """Beyond the bound it drowns us; anything asked for in between starts the count anew."""
    flood = OutputLimit()
    flood.swell(MOST_BYTES)
    flood.ebb()
    flood.swell(MOST_BYTES)
    assert not flood.drowning
    flood.swell(1)
    assert flood.drowning
