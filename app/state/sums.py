"""Sums that several processes add to: learned calibration, kept in a file or in Redis (`shared_sums.py`).

Each process keeps what it added since the last exchange, and then reads the whole. The order of exchanges does not
matter; an exchange that fails is made again later, with everything since.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from app.protocol.errors import StateUnreachable

HALF_LIFE_SECONDS = 30 * 86400.0
"""After this time an addition counts half."""
SCALE_SECONDS = 3600.0
"""Kept sums are scaled for forgetting at most this often."""


class SumsUpdate(NamedTuple):
    """What one process adds to the sums of one name."""

    name: str
    values: Sequence[float]
    era: int
    """Of the sums that it was made from; to those of another era it is not added."""
    label: str = ""
    """Kept with the sums, such as the version of the engine that they are about."""
    reset: bool = False
    """Begin a new era with only these values."""
    fading: int = 0
    """How many of the values, from the first, are forgotten with time. The last of these has a bound …"""
    most: float = 0.0
    """… above which all of them are scaled down."""
    whole: Sequence[float] = ()
    """The sums as this process knows them, `values` among them: written where nothing is kept any more."""


class Kept(NamedTuple):
    """The sums of one name as all processes made them. `at`: Unix time up to which they are scaled."""

    values: tuple[float, ...]
    era: int
    label: str
    at: float


class Sums(Protocol):
    """Where the sums are kept."""

    async def exchange(self, additions: Sequence[SumsUpdate], now: float) -> Mapping[str, Kept]:
        """Add, and read the whole of the same names, as far as there is any. `now`: Unix time. Raises
        StateUnreachable."""
        ...


def share_left(addition: SumsUpdate, last: float, seconds: float) -> float:
    """By what the fading values are multiplied after that time; `last`: the fading value that has a bound."""
    share = float(2 ** (-max(0.0, seconds) / HALF_LIFE_SECONDS))
    return share * addition.most / (last * share) if addition.most and last * share > addition.most else share


class FileSums:
    """Sums in one JSON file, which the workers of one machine share. Satisfies `Sums`."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    async def exchange(self, additions: Sequence[SumsUpdate], now: float) -> Mapping[str, Kept]:
        """Add and read, in a thread. Raises StateUnreachable if the file cannot be read or written."""
        try:
            return await asyncio.to_thread(self._exchanged, additions, now)
        except OSError as fault:
            raise StateUnreachable(f"{self._path}: {fault.strerror or fault}") from None

    def _exchanged(self, additions: Sequence[SumsUpdate], now: float) -> dict[str, Kept]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{self._path}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self._read()
            found = {addition.name: _added(kept.get(addition.name), addition, now) for addition in additions}
            if any(kept.get(name) != new for name, new in found.items()):
                self._write({**kept, **found})
        return found

    def _read(self) -> dict[str, Kept]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return {name: _read_kept(stated) for name, stated in json.loads(text)["sums"].items()}
        except (ValueError, TypeError, LookupError, AttributeError):
            # A file that nobody can read must not keep a gateway from learning. It stays, under another name.
            self._path.replace(f"{self._path}.unreadable")
            return {}

    def _write(self, kept: Mapping[str, Kept]) -> None:
        # Written beside and renamed: whoever reads sees the old file or the new one, also after a crash.
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        with beside.open("w", encoding="utf-8") as file:
            json.dump({"format": 1, "sums": {name: each._asdict() for name, each in kept.items()}}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)

    def __repr__(self) -> str:
        return f"<FileSums in {self._path}>"


def file_sums(path: str | None) -> FileSums | None:
    """Sums in the file at `path`; None: nowhere."""
    return None if path is None else FileSums(Path(path))


def _read_kept(stated: Any) -> Kept:
    values = tuple([float(value) for value in stated["values"]])
    if not all(isfinite(value) for value in values):
        raise ValueError("not finite")
    return Kept(values, int(stated["era"]), str(stated["label"]), float(stated["at"]))


def _added(kept: Kept | None, addition: SumsUpdate, now: float) -> Kept:
    """The sums of one name after an addition, and after the time that has passed."""
    if kept is None or len(kept.values) != len(addition.values):
        values = addition.values if addition.reset else addition.whole
        return Kept(tuple(values), addition.era + addition.reset, addition.label, now)
    if addition.reset:
        return Kept(tuple(addition.values), kept.era + 1, addition.label, now)
    if kept.era != addition.era:
        return kept
    values = [old + new for old, new in zip(kept.values, addition.values, strict=True)]
    at, most = kept.at, values[addition.fading - 1] if addition.fading else 0.0
    if now - at >= SCALE_SECONDS or (addition.most and most > addition.most):
        share = share_left(addition, most, now - at)
        values[: addition.fading] = [value * share for value in values[: addition.fading]]
        at = max(at, now)
    return Kept(tuple(values), kept.era, kept.label or addition.label, at)
