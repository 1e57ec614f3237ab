"""What is wrong with a file of wishes: where, what, and what to write instead.

The one error of this room. It decides how faults read; it refuses to know how they were found.
Settings import nothing of ours, so this error stands beside the tree of `protocol/errors.py`, not in it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_SHOWN = 60
"""Characters of a key or value that a message repeats."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault. `path` is like `engines[2].timeoutMs`, empty for the file as a whole."""

    path: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}" + (f"; {self.suggestion}" if self.suggestion else "")


class SettingsError(Exception):
    """A file, or the environment, that cannot be used; carries every fault that was found, not only the first."""

    def __init__(self, file: str, faults: tuple[FieldError, ...]) -> None:
        super().__init__(file, faults)
        self.file = file
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join([f"{self.file}: {_count(len(self.faults))}", *(f"  {fault}" for fault in self.faults)])

    def __repr__(self) -> str:
        return f"SettingsError({self.file!r}, {_count(len(self.faults))}: {', '.join(f.path for f in self.faults)})"


def dotted(parts: Iterable[str | int]) -> str:
    """`("engines", 2, "timeoutMs")` as `engines[2].timeoutMs`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_key(part)}" if path else _key(part)
    return path


def shown(text: str) -> str:
    """`text` fit for one line of a terminal: control characters out, at most MAX_SHOWN characters."""
    clean = "".join(c if c.isprintable() else "�" for c in text[: MAX_SHOWN + 1])
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 1] + "…"


def _key(key: str) -> str:
    """A key cut where it stops to look like one: whole lines with a secret in them get pasted as header names."""
    name = re.split(r"[^\w$.@/<~+*-]", key, maxsplit=1)[0]
    return shown(key if name == key else f"{name}…")


def _count(faults: int) -> str:
    return "1 fault" if faults == 1 else f"{faults} faults"
