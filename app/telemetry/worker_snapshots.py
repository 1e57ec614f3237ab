"""Shares the metrics of several workers: each writes its numbers to a file of a common folder, once a second.

A worker that is scraped reads the files of the others and adds them up. Workers have places, numbered from 0; a worker
that replaces another one takes over its place and goes on from its counts, so that counters never go down.
"""

import marshal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app.telemetry.logs import logger
from app.telemetry.series import Snapshot

SUFFIX: Final = ".metrics"


class WorkerSnapshot(NamedTuple):
    """The numbers of one worker: what it has counted, and the gauges, which end with it."""

    counts: Snapshot
    gauges: Snapshot


class WorkerSnapshots:
    """The files of all workers. `place` is ours."""

    __slots__ = ("_failing", "_file", "folder")

    def __init__(self, folder: Path, place: int) -> None:
        self.folder = folder
        self._file = _file_of(folder, place)
        self._failing = False

    def inherited(self) -> Snapshot:
        """What the previous worker in our place had counted; empty for the first."""
        found = _read(self._file)
        return {} if found is None else found.counts

    def write(self, snapshot: WorkerSnapshot) -> None:
        """Replace our numbers. Never raises: a full disk must not end a worker. The others then see older numbers."""
        try:
            _write(self._file, snapshot)
        except OSError as fault:
            if not self._failing:  # once, not every second
                logger().error("metrics_not_shared", file=str(self._file), detail=str(fault))
            self._failing = True
        else:
            self._failing = False

    def others(self) -> list[Path]:
        """The files of the other workers."""
        return sorted(path for path in self.folder.glob(f"*{SUFFIX}") if path != self._file)

    @staticmethod
    def read(path: Path) -> WorkerSnapshot | None:
        """The numbers of one worker; None if there are none."""
        return _read(path)

    def __repr__(self) -> str:
        return f"<WorkerSnapshots {self._file}>"


def forget_gauges(folder: Path, place: int) -> None:
    """Drop the gauges of a worker that has ended: connections and calls that ended with it. Its counts stay."""
    path = _file_of(folder, place)
    found = _read(path)
    if found is not None:
        with suppress(OSError):  # stale gauges are better than no workers
            _write(path, found._replace(gauges={}))


def _file_of(folder: Path, place: int) -> Path:
    return folder / f"{place}{SUFFIX}"


def _read(path: Path) -> WorkerSnapshot | None:
    try:
        written = path.read_bytes()
    except OSError:
        return None
    # marshal is several times as fast as pickle here, and runs no code. The folder is readable and writable by this
    # user alone, and all workers run the same interpreter.
    counts, gauges = marshal.loads(written)
    return WorkerSnapshot(counts, gauges)


def _write(path: Path, snapshot: WorkerSnapshot) -> None:
    """Replace the file in one step, so that no reader sees half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(marshal.dumps(tuple(snapshot)))
    fresh.replace(path)
