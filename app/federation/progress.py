"""What a caller is told while its question is under way (RCP §9): each engine that ended, and that the lists are fused.

Pure: what has become of the legs goes in, the params of `notifications/progress` come out. It refuses to know how they
reach the caller; whoever brings them there is a Listener.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from app.federation.outcome import Hit, Outcome, failure_line
from app.federation.rerank_plan import RerankVerdict
from app.protocol.retrieve_params import LOG_LEVELS

Progress = dict[str, Any]
"""The params of one `notifications/progress`."""

Token = str | int | None
"""The caller's `_meta.progressToken`; it comes back as it was sent."""


class ProgressListener(Protocol):
    """Where progress goes. No method waits."""

    @property
    def ready(self) -> bool:
        """Whether a list of hits that is told now can be sent at once. No list is made for who is not ready."""
        ...

    def open(self) -> None:
        """Engines are about to be asked: from here on the caller hears what happens."""
        ...

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Something happened. What comes later may take the place of what a slow caller has not heard yet."""
        ...

    def log(self, line: Mapping[str, Any]) -> None:
        """A line for the caller's own log, of which nothing takes the place."""
        ...


def call_ended(token: Token, outcome: Outcome, ended: int, engine_calls: int, hits: Sequence[Hit] | None) -> Progress:
    """One engine of `legs` ended, the `ended`th to do so. `hits` is the fused list so far, if it is told now.

    `progress` is the share of engines that have ended.
    """
    progress: Progress = {
        "progressToken": token,
        "progress": ended / engine_calls,
        "stage": "recall",
        "message": failure_line(outcome) if outcome.status == "failed" else _answer_line(outcome),
    }
    if hits is not None:
        progress["partial"] = {"hits": hits}
    return progress


def list_so_far(token: Token, ended: int, engine_calls: int, hits: Sequence[Hit]) -> Progress:
    """The fused list after `ended` of `legs` engines, told some time after the last of them."""
    return {
        "progressToken": token,
        "progress": ended / engine_calls,
        "stage": "recall",
        "message": f"{ended} of {engine_calls} engines have ended",
        "partial": {"hits": hits},
    }


def log_line(wanted: str, outcome: Outcome) -> Progress | None:
    """The params of `notifications/log` (RCP §17.1) for a leg that ended; None if the caller `wanted` only graver ones.

    An engine that failed is a warning, one that answered is for debugging.
    """
    level = "warning" if outcome.status == "failed" else "debug"
    if LOG_LEVELS.index(level) < LOG_LEVELS.index(wanted):
        return None
    data: dict[str, Any] = {"engine": outcome.engine, "status": outcome.status, "tookMs": round(outcome.took * 1000, 2)}
    if outcome.kind is not None:
        data["reason"] = outcome.kind
    message = failure_line(outcome) if outcome.status == "failed" else _answer_line(outcome)
    return {"level": level, "message": message, "logger": "federation", "data": data}


def fused(token: Token, outcomes: Sequence[Outcome]) -> Progress:
    """Every engine has ended and the lists are one; the response is next."""
    answers = sum(outcome.status == "ok" for outcome in outcomes)
    return {
        "progressToken": token,
        "progress": 1.0,
        "stage": "fuse",
        "message": f"{answers} of {len(outcomes)} engines answered",
    }


def reranked(token: Token, verdict: RerankVerdict) -> Progress:
    """The union was reranked, or was to be; the response is next."""
    message = f"{verdict.engine}: {verdict.reranked} documents reranked" if verdict.engine else "the fused order stands"
    return {"progressToken": token, "progress": 1.0, "stage": "rerank", "message": message}


def _answer_line(outcome: Outcome) -> str:
    hits = len(outcome.hits)
    said = "answered" if outcome.result is not None and not hits else f"{hits} hit{'' if hits == 1 else 's'}"
    return f"{outcome.engine}: {said} after {outcome.took * 1000:.0f} ms"
