"""A stream that nobody asked for: what is read of it without a pause, and when it is too much."""

from app.engines.child_output import BURST_BYTES, LINE_COST, MOST_BYTES, PAUSE_SECONDS, OutputLimit


def test_a_little_is_read_at_once() -> None:
    """Up to the burst in one second nothing is held up, and the next second has a burst of its own."""
    output_limit = OutputLimit()
    for now in (0.0, 0.5, 1.0, 1.5):
        output_limit.add(BURST_BYTES // 2)
        assert output_limit.pause(now) == 0
    assert not output_limit.exceeded
    assert repr(output_limit) == f"<OutputLimit {BURST_BYTES * 2} bytes, {BURST_BYTES} in the last second>"


def test_more_is_read_with_pauses() -> None:
    """Beyond the burst each further piece of that second is followed by a pause; silence by none."""
    output_limit = OutputLimit()
    output_limit.add(BURST_BYTES + 1)
    assert output_limit.pause(10.0) == PAUSE_SECONDS
    assert output_limit.pause(10.1) == 0
    output_limit.add(1)
    assert output_limit.pause(10.2) == PAUSE_SECONDS


def test_short_lines_weigh_more_than_their_bytes() -> None:
    """What costs time is the number of lines, so they are a flood sooner."""
    output_limit = OutputLimit()
    output_limit.add(20_000, lines=BURST_BYTES // LINE_COST)
    assert output_limit.pause(0.0) == PAUSE_SECONDS


def test_too_much_without_an_answer_is_too_much() -> None:
    """Beyond the bound it drowns us; anything asked for in between starts the count anew."""
    output_limit = OutputLimit()
    output_limit.add(MOST_BYTES)
    output_limit.reset()
    output_limit.add(MOST_BYTES)
    assert not output_limit.exceeded
    output_limit.add(1)
    assert output_limit.exceeded
