"""The params of `feedback`. What is malformed is shown over the wire in tests/gateway/test_feedback.py."""

import pytest

from app.protocol.method_params import read_feedback


def test_signals_without_nulls() -> None:
    """All else stays, known or not; the bounds of a reward are part of it."""
    read = read_feedback({"signals": [{"hitId": 1, "used": None, "reward": -1, "x": {"y": None}}], "query": "q"})
    assert read.signals == [{"hitId": 1, "reward": -1, "x": {"y": None}}]
    assert read.raw == {"query": "q"}


@pytest.mark.parametrize("reward", [-1, 0, 0.5, 1, 1.0])
def test_rewards(reward: float) -> None:
    """Numbers of both kinds."""
    assert read_feedback({"signals": [{"hitId": "a", "reward": reward}]}).signals[0]["reward"] == reward
