"""What a piece of code logs, as parsed lines, without a trace in the log of the test run itself."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from app.protocol import envelope
from app.telemetry import logs


class LogLines:
    """The lines written so far."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        """Everything as it was written."""
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Every line, parsed."""
        return [json.loads(line) for line in self.text.splitlines()]

    def configure(self, style: str = "json", level: str = "info") -> "LogLines":
        """Set the process's log up to write here."""
        logs.configure(style, level, envelope.dumps, self.stream)
        return self


@contextmanager
def own_log() -> Iterator[LogLines]:
    """The process's log goes into the lines that are handed out, and is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield LogLines().configure()
    finally:
        root.handlers[:], root.level = handlers, level
        for name in logs.VERBOSE_LIBRARIES:
            logging.getLogger(name).setLevel(logging.NOTSET)
        structlog.reset_defaults()
