"""Logs events of engines, and creates and removes their metric series.

A module of its own, because `app/main.py` only passes these callbacks to the engines.
"""

from collections.abc import Iterable

from app.engines.discovery import Move
from app.engines.engine import RemoteEngine
from app.engines.handshake import Warmed
from app.protocol.errors import CALL_KINDS, LegError
from app.telemetry import logs
from app.telemetry.metrics import Metrics


class EngineEvents:
    """The callbacks of one set of engines."""

    __slots__ = ("_log", "_metrics")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = logs.logger()

    def declare(self, engines: Iterable[RemoteEngine]) -> None:
        """Create the series of these engines, before they have events."""
        # A counter that appears with its first event hides that event from rate().
        engines = list(engines)
        self._metrics.declare_engines((engine.id for engine in engines), CALL_KINDS)
        for engine in engines:
            self._metrics.declare_replicas(engine.id, [replica.label for replica in engine.state().replicas])
            self._metrics.shadows.watch(engine.id, shadow=engine.entry.shadow is not None)

    def changed(self, engine: RemoteEngine, fault: LegError | None) -> None:
        """An engine became available, or unavailable because of `fault`."""
        if fault is None:
            self._log.info("engine_up", engine=engine.id)
        else:
            self._log.warning("engine_down", engine=engine.id, reason=fault.kind, detail=fault.message)

    def stderr_line(self, engine_id: str, line: str) -> None:
        """An engine that runs as a child process wrote a line to its stderr."""
        self._log.info("engine_stderr", engine=engine_id, line=line)

    def moved(self, move: Move) -> None:
        """An engine behind another gateway was discovered, or is gone."""
        if move.kind == "joined":
            self._metrics.declare_engines([move.engine], CALL_KINDS)
            self._log.info("engine_joined", engine=move.engine, gateway=move.gateway)
        elif move.kind == "left":
            self._metrics.forget_engines([move.engine])
            self._log.info("engine_left", engine=move.engine, gateway=move.gateway)
        else:
            self._log.warning("engine_not_joined", engine=move.engine, gateway=move.gateway, reason=move.reason)

    def warmed(self, warmed: Warmed) -> None:
        """The replacement of an engine with a changed entry has completed its handshake, or has failed to in time."""
        seconds = round(warmed.seconds, 1)
        if warmed.fault is None:
            self._log.info("engine_warmed", engine=warmed.engine, seconds=seconds)
        else:
            self._log.warning("engine_not_warm", engine=warmed.engine, seconds=seconds, detail=warmed.fault)
