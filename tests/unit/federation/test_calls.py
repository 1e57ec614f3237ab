"""The first of the values that travel: frozen, and with defaults that leave nothing open."""

import dataclasses

import pytest

from app.federation.calls import RetrieveCall
from tests.support.fake_engine import call_of


def test_call_is_frozen() -> None:
    """Nobody down the line can change what was accepted at the door."""
    call = call_of("q", k=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.deadline = 1.0  # type: ignore[misc]
    assert not hasattr(call, "__dict__")


def test_what_a_call_says_when_nobody_says_more() -> None:
    """Without more words a call may go three levels down and hands nothing of the caller's `_meta` on."""
    call = call_of("q")
    bare = RetrieveCall(call.params, call.meta, started=1.0, deadline=2.0, request_id="r")
    assert bare.default_depth == 3
    assert bare.passed_on == {}
