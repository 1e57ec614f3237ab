"""Which snapshots engines served, and whether they are the ones that were pinned (RCP §7.7). Pure.

An engine that cannot serve what it is pinned to fails the whole request with -32010: another snapshot in its place, or
none, would be a lie. It refuses to know how a pin is written.
"""

from collections.abc import Sequence

from app.federation.outcome import Outcome, failure_line
from app.federation.planner import EngineCall
from app.protocol.errors import BackendUnavailable


def versions_of(engine_calls: Sequence[EngineCall], outcomes: Sequence[Outcome]) -> dict[str, str] | None:
    """Engine id -> the version that it served.

    None unless every engine that was asked has snapshots, and every one that answered names the one it served; one that
    was pinned need not name it.
    """
    if not all(map(_has_snapshots, engine_calls)):
        return None
    versions: dict[str, str] = {}
    pinned: dict[str, str | None] = {}
    for outcome in outcomes:
        if outcome.status != "ok":
            continue
        version = outcome.index_version
        if version is None:
            pinned = pinned or {engine_call.engine.id: engine_call.pinned for engine_call in engine_calls}
            version = pinned[outcome.engine]
            if version is None:
                return None
        versions[outcome.engine] = version
    return versions


def not_served(engine_calls: Sequence[EngineCall], outcomes: Sequence[Outcome]) -> BackendUnavailable | None:
    """The error (-32010) of a request whose snapshot some engine failed to serve, or served another in place of it."""
    pinned = {
        engine_call.engine.id: engine_call.pinned for engine_call in engine_calls if engine_call.pinned is not None
    }
    for outcome in outcomes:
        version = pinned.get(outcome.engine)
        if version is None:
            continue
        if outcome.status == "failed":
            return _unavailable(outcome.engine, failure_line(outcome), retryable=outcome.kind != "refused")
        if outcome.index_version not in (None, version):
            return _unavailable(outcome.engine, "it served another one", retryable=False)
    return None


def _unavailable(engine: str, why: str, *, retryable: bool) -> BackendUnavailable:
    return BackendUnavailable(
        f"the snapshot cannot be served: engine '{engine}' failed to", retryable=retryable, detail=why
    )


def _has_snapshots(engine_call: EngineCall) -> bool:
    advertisement = engine_call.engine.advertisement
    return advertisement is not None and advertisement.retrieve is not None and advertisement.retrieve.snapshots
