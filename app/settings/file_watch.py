"""Watches files for changed content.

Content is compared, because a Kubernetes ConfigMap changes by swapping a symbolic link and an editor by renaming a new
file over the old one; both may keep the time stamp.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_Stamp = tuple[int, int, int, int] | None
"""Device, inode, size and time (ns) of what a name leads to; None if to nothing."""


class Watch:
    """The files as they were when last looked at. Reads them only if they look different."""

    __slots__ = ("_digests", "_paths", "_stamps")

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._stamps: tuple[_Stamp, ...] = ()
        self._digests: tuple[bytes, ...] = ()
        self.changed()

    def changed(self) -> bool:
        """Look again: whether the content of one of them is another than the last time. Blocks while it reads."""
        stamps = tuple(_stamp(path) for path in self._paths)
        if stamps == self._stamps:
            return False
        digests = tuple(_digest(path) for path in self._paths)
        same = digests == self._digests
        self._stamps, self._digests = stamps, digests
        return not same

    def __repr__(self) -> str:
        return f"<Watch {', '.join(map(str, self._paths))}>"


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""
