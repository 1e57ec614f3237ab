"""Metrics and log lines about engine calls: attempts, breaker, replicas, and changes of what an engine advertises.

Nothing here contains text of queries or documents. Values that an engine sends are cut before they are logged.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.protocol.advertisement import Advertisement
from app.protocol.errors import LegError, clip
from app.telemetry.logs import logger
from app.telemetry.metrics import Metrics

HOLD_QUIET_SECONDS = 60.0
"""An engine that limits our rate is logged at most once in so long."""


class CallInstrumentation(Protocol):
    """One engine's watcher. Nothing here waits or raises."""

    @property
    def first(self) -> Callable[[], None]:
        """Called for the first attempt of each call."""
        ...

    def attempted(self, kind: str, count: int = 1) -> None:
        """Further attempts: `again` (fresh connection, after a handshake), `retry` or `hedge`."""
        ...

    def retry_skipped(self, reason: str) -> None:
        """A retry was not made: `budget` or `time`."""
        ...

    def waited(self, seconds: float) -> None:
        """A call waited so long at the semaphore."""
        ...

    def breaker(self, state: str, fault: LegError | None = None, seconds: float | None = None) -> None:
        """The breaker went over to `state`; opened for `fault`, and for `seconds`."""
        ...

    def replica(self, label: str, fault: LegError | None) -> None:
        """A replica was ejected for `fault`, or (None) is back."""
        ...

    def held(self, seconds: float) -> None:
        """The engine asked not to be asked for `seconds`."""
        ...

    def advertised(self, before: Advertisement, after: Advertisement) -> None:
        """The engine advertises something else than before."""
        ...

    def process_ended(self, how: str, seconds: float, times: int) -> None:
        """Its process ended by itself, for the `times`th time in a row; it is not started again for `seconds`."""
        ...


class NoInstrumentation:
    """Watches nothing: for engines outside a gateway."""

    def first(self) -> None: ...

    def attempted(self, kind: str, count: int = 1) -> None: ...

    def retry_skipped(self, reason: str) -> None: ...

    def waited(self, seconds: float) -> None: ...

    def breaker(self, state: str, fault: LegError | None = None, seconds: float | None = None) -> None: ...

    def replica(self, label: str, fault: LegError | None) -> None: ...

    def held(self, seconds: float) -> None: ...

    def advertised(self, before: Advertisement, after: Advertisement) -> None: ...

    def process_ended(self, how: str, seconds: float, times: int) -> None: ...


class EngineInstrumentation:
    """Counts and logs for one engine."""

    __slots__ = ("_engine", "_held_at", "_log", "_metrics", "first")

    def __init__(self, engine: str, metrics: Metrics) -> None:
        self.first = metrics.first_attempts_of(engine)
        self._engine = engine
        self._metrics = metrics
        self._log = logger()
        self._held_at: float | None = None

    def attempted(self, kind: str, count: int = 1) -> None:
        self._metrics.attempted(self._engine, kind, count)

    def retry_skipped(self, reason: str) -> None:
        self._metrics.forgone(self._engine, reason)

    def waited(self, seconds: float) -> None:
        self._metrics.waited(self._engine, seconds)

    def breaker(self, state: str, fault: LegError | None = None, seconds: float | None = None) -> None:
        self._metrics.breaker(self._engine, state)
        event = {"open": "breaker_opened", "half_open": "breaker_half_open", "closed": "breaker_closed"}[state]
        fields: dict[str, Any] = {} if fault is None else {"reason": fault.kind, "detail": fault.message}
        if seconds is not None:
            fields["seconds"] = round(seconds, 1)
        (self._log.info if fault is None else self._log.warning)(event, engine=self._engine, **fields)

    def replica(self, label: str, fault: LegError | None) -> None:
        if fault is None:
            self._log.info("replica_returned", engine=self._engine, replica=label)
            return
        self._metrics.ejected(self._engine, label)
        self._log.warning(
            "replica_ejected", engine=self._engine, replica=label, reason=fault.kind, detail=fault.message
        )

    def held(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        # A limited engine answers -32011 to every call: one line a minute is enough.
        if self._held_at is None or now >= self._held_at + HOLD_QUIET_SECONDS:
            self._held_at = now
            self._log.warning("engine_rate_limited", engine=self._engine, seconds=round(seconds, 1))

    def advertised(self, before: Advertisement, after: Advertisement) -> None:
        self._log.info("advertisement_changed", engine=self._engine, **difference(before, after))

    def process_ended(self, how: str, seconds: float, times: int) -> None:
        fields = {"detail": how, "inARow": times, "restartInSeconds": round(seconds, 1)}
        self._log.warning("engine_process_ended", engine=self._engine, **fields)

    def __repr__(self) -> str:
        return f"<EngineWitness {self._engine}>"


MAX_CHANGES = 20
MAX_VALUE = 80
MAX_DEPTH = 2
"""Capabilities and their fields; what lies deeper is compared as a whole."""


def difference(before: Advertisement, after: Advertisement) -> dict[str, Any]:
    """`server` if its name or version changed, and the capabilities that were `added`, `removed` and `changed`."""
    fields: dict[str, Any] = {}
    if dict(before.server) != dict(after.server):
        fields["server"] = f"{_server(before)} -> {_server(after)}"
    old, new = _flat(before.capabilities), _flat(after.capabilities)
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    changed = [f"{key}: {old[key]} -> {new[key]}" for key in sorted(old.keys() & new.keys()) if old[key] != new[key]]
    for name, lines in (("added", added), ("removed", removed), ("changed", changed)):
        if lines:
            fields[name] = [clip(line) for line in lines[:MAX_CHANGES]]
    return fields


def _server(said: Advertisement) -> str:
    return clip(f"{said.server['name']} {said.server['version']}")


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 1) -> dict[str, str]:
    """Dotted key -> value as text."""
    flat: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and depth < MAX_DEPTH:
            flat[f"{prefix}{key}"] = "{}"
            flat |= _flat(inner, f"{prefix}{key}.", depth + 1)
        else:
            flat[f"{prefix}{key}"] = _shown(inner)
    return flat


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:  # JSON is read up to 1024 levels deep; repr gives up earlier
        return "(too deep)"
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
