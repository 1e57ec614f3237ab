"""Finds and reads the files of one engine source. A team's folder is untrusted: names, links, sizes and kinds.

Every function blocks and is called in a thread.
"""

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from app.settings.field_errors import FieldError, SettingsError

MAX_FILES = 256
MAX_BYTES = 1_048_576

Stamp = tuple[int, int, int, int]
"""Device, inode, size and modification time (ns)."""


class FoundFiles(NamedTuple):
    """The files of a source by name, and what is wrong with its folder as a whole."""

    stamps: dict[str, Stamp | FieldError]
    """Path -> its stamp, or why it is not read."""
    faults: tuple[FieldError, ...]
    passed_over: frozenset[str]
    """Paths beyond the limit, which are there but not read."""
    gone: bool
    """Whether the folder itself could be listed, so that absent files are really gone."""


def find_files(pattern: str) -> FoundFiles:
    """The files that match, in sorted order, at most MAX_FILES."""
    path = Path(pattern)
    folder = path.parent
    try:
        inside = folder.resolve(strict=True)
        names = sorted(name for name in os.listdir(folder) if _fits(name, path.name))  # noqa: PTH208 - names
    except OSError as fault:
        # An unmounted volume must not remove every engine of a team.
        message = f"'{folder}' cannot be listed: {fault.strerror or fault}"
        return FoundFiles(
            {}, (FieldError("", message, "create the folder, or correct 'files'"),), frozenset(), gone=False
        )
    faults = []
    if len(names) > MAX_FILES:
        message = f"{len(names)} files match, of which only the first {MAX_FILES} are read"
        faults.append(FieldError("", message, "use fewer files"))
    stamps: dict[str, Stamp | FieldError] = {}
    for name in names[:MAX_FILES]:
        found = _stamp(folder / name, inside)
        if found is not None:
            stamps[str(folder / name)] = found
    passed_over = frozenset(str(folder / name) for name in names[MAX_FILES:])
    return FoundFiles(stamps, tuple(faults), passed_over, gone=True)


def _fits(name: str, pattern: str) -> bool:
    # Editors and Kubernetes keep their own files under names with a leading dot.
    return not name.startswith(".") and fnmatchcase(name, pattern)


def _stamp(path: Path, inside: Path) -> Stamp | FieldError | None:
    try:
        found = path.stat()
        # The links of a mounted ConfigMap lead through `..data`, which lies in the same folder.
        if not path.resolve().is_relative_to(inside):
            return FieldError("", "is a link that leads out of the folder", "put the file itself into the folder")
    except FileNotFoundError:
        return None  # removed meanwhile, or a dangling link
    except OSError as fault:
        return FieldError("", f"cannot be read: {fault.strerror or fault}")
    if not stat.S_ISREG(found.st_mode):
        return FieldError("", "is not a regular file", "remove it, or give it a name that 'files' does not match")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_file(file: str) -> str:
    """The text of a file of a source. Raises SettingsError."""
    try:
        # A pipe that has taken the file's name since it was found must not hang the thread.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SettingsError(file, (FieldError("", "is not a regular file"),))
            content = opened.read(MAX_BYTES + 1)
    except OSError as fault:
        raise SettingsError(file, (FieldError("", f"cannot be read: {fault.strerror or fault}"),)) from None
    return decoded(file, content)


def decoded(name: str, content: bytes) -> str:
    """The text of a document. Raises SettingsError if it is empty, too large or not UTF-8."""
    if len(content) > MAX_BYTES:
        raise SettingsError(name, (FieldError("", f"is larger than {MAX_BYTES} bytes", "split it into several files"),))
    # A cut-off copy must never mean "no engines".
    if not content.strip():
        raise SettingsError(name, (FieldError("", "is empty", 'write {"engines": []} for no engines'),))
    try:
        return content.decode()
    except UnicodeDecodeError as fault:
        raise SettingsError(name, (FieldError("", f"is not UTF-8 text (byte {fault.start})"),)) from None
