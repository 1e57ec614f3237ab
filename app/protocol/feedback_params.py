"""What a caller may send with `feedback` (RCP §7.16).

Decides what is malformed whatever the capabilities (-32602 with the field). It refuses to know whose hits are meant.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.protocol.id_params import check_id, read_session
from app.protocol.param_errors import refuse, refuse_value
from app.protocol.param_fields import forwardable, read_text

MAX_SIGNALS: Final = 1000
"""Signals of one `feedback`."""

FLAGS: Final = ("used", "cited", "helpful", "poisonSuspected", "injectionSuspected")


class FeedbackParams(NamedTuple):
    """One well-formed `feedback`."""

    signals: list[dict[str, Any]]
    """Without nulls; what RCP does not define is kept."""
    session_id: str | None
    raw: dict[str, Any]
    """What goes to every engine as it is."""


def read_feedback(params: Mapping[str, Any]) -> FeedbackParams:
    """Check the params of `feedback`. Raises InvalidParams (-32602)."""
    sent = params.get("signals")
    if type(sent) is not list or len(sent) > MAX_SIGNALS:
        refuse("signals", f"'signals' must be an array of at most {MAX_SIGNALS} objects with a 'hitId'")
    signals = [_signal(signal, f"signals[{index}]") for index, signal in enumerate(sent)]
    read_text(params, "query")
    return FeedbackParams(signals, read_session(params), forwardable(params, "signals", "sessionId"))


def _signal(signal: Any, name: str) -> dict[str, Any]:
    if type(signal) is not dict:
        refuse_value(name, "an object with a 'hitId'", signal)
    said = {key: value for key, value in signal.items() if value is not None}
    check_id(said.get("hitId"), f"{name}.hitId")
    for flag in FLAGS:
        if type(said.get(flag, False)) is not bool:
            refuse_value(f"{name}.{flag}", "true or false", said[flag])
    reward = said.get("reward", 0)
    if type(reward) not in (int, float) or not -1 <= reward <= 1:
        refuse_value(f"{name}.reward", "a number from -1 to 1", reward)
    return said
