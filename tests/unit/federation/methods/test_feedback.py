"""Feedback to scripted engines: what only shows without an endpoint. The rest is in tests/gateway/test_feedback.py."""

from app.federation.methods.feedback import feedback
from tests.support.broadcast_calls import context_of, temporary_pages
from tests.support.fake_engine import FakeEngine


async def test_sessions_reach_engines_that_keep_them() -> None:
    """Hashed, and not where an engine leaves out hits by itself: it was told of no session there."""
    one = FakeEngine("one", {"accepted": 1}, capabilities={"feedback": {}})
    two = FakeEngine("two", {"accepted": 1}, capabilities={"feedback": {}, "session": {"dedup": True}})
    params = {"sessionId": "s", "signals": [{"hitId": "a", "used": True}]}
    result = await feedback(context_of("feedback", params, one, two), temporary_pages())
    assert result["accepted"] == 1
    assert one.asked[0]["sessionId"] != "s"
    assert "sessionId" not in two.asked[0]
    assert one.idempotent == two.idempotent == [False]


async def test_what_is_remembered_of_an_engine_that_left() -> None:
    """Its signals are not for anybody else."""
    pages = temporary_pages()
    await pages.origins.remember("s", {"a": {"gone": "a"}})
    one = FakeEngine("one", {"accepted": 1}, capabilities={"feedback": {}})
    params = {"sessionId": "s", "signals": [{"hitId": "a"}]}
    result = await feedback(context_of("feedback", params, one), pages)
    assert (result["accepted"], one.asked) == (0, [])
    assert result["usage"]["notes"] == ["1 signal(s) concern hits of engines that do not take feedback"]
