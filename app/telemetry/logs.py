"""The log: one JSON object per line on stderr (or readable lines), for this process and its libraries.

It decides how a line looks; what is worth a line is decided where it happens. Query and hit texts never come here.
"""

import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from app.telemetry.log_rate_limit import LogAllowance, LogRateLimit
from app.telemetry.log_writer import LogWriter

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

WORDY = ("httpx2", "httpcore2", "mcp")
"""Libraries with lines about each request: they hold whole URLs, and with them what may be secret there, or say nothing
that ours do not."""

_QUERIED = re.compile(r"""([?&][^\s=&?"'<>()]+=)[^\s&"'\\<>()]+""")
"""A value in the query of a URL."""


def configure(
    style: str,
    level: str,
    dumps: Callable[[Any], bytes],
    stream: TextIO | None = None,
    budget: LogAllowance | None = None,
) -> None:
    """Set up the log once per process; `style` is `json` or `console`, `dumps` writes JSON.

    `allowance`: how many lines one kind of event may have; None: all of them.
    """
    out: Any = LogWriter(stream or sys.stderr or Path(os.devnull).open("w"))  # noqa: SIM115 - 2>&-
    stamp: list[Processor] = [_stamp]
    render: Processor
    if style == "json":
        render = partial(_json_line, dumps)
    else:
        render = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    rate_limit = None if budget is None else LogRateLimit(budget, partial(_tell_suppressed, render, out))
    limit: list[Processor] = [] if rate_limit is None else [partial(_limit, rate_limit)]
    structlog.configure(
        processors=[*limit, *stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    _adopt_libraries(stamp, render, out, level, rate_limit)


def logger() -> FilteringBoundLogger:
    """The process's logger: `log.info("event", key=value)`."""
    log: FilteringBoundLogger = structlog.get_logger()
    return log


def _limit(rate_limit: LogRateLimit, log: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Leave the line out if there were too many of its kind."""
    if rate_limit.admits(event["event"]):
        return event
    raise structlog.DropEvent


def _tell_suppressed(render: Processor, out: Any, kind: str, count: int) -> None:
    """One line for those that were left out; it passes the level, which they had passed too."""
    line = _stamp(None, "warning", {"event": "suppressed", "kind": kind, "count": count})
    out.write(str(render(None, "warning", line)) + "\n")


def _stamp(log: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Level and time, in one step: a line is written for every request."""
    event["level"] = "error" if method == "exception" else method
    event["timestamp"] = datetime.now(UTC).isoformat()
    return event


def _json_line(dumps: Callable[[Any], bytes], log: WrappedLogger, method: str, event: EventDict) -> str:
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(log, method, event)
    return _line(event, dumps)


def _line(event: EventDict, dumps: Callable[[Any], bytes]) -> str:
    try:
        return dumps(event).decode()
    except TypeError:  # a value that JSON cannot say must not cost the line, let alone the request it is about
        shown = {str(key): value if type(value) is str else repr(value) for key, value in event.items()}
        return dumps({key: value.encode("utf-8", "replace").decode() for key, value in shown.items()}).decode()


def _adopt_libraries(
    stamp: list[Processor], render: Processor, out: Any, level: str, rate_limit: LogRateLimit | None
) -> None:
    """Let what libraries log through `logging` come out in the same form; all lines of one library are one kind."""
    handler = logging.StreamHandler(out)
    if rate_limit is not None:
        handler.addFilter(lambda record: rate_limit.admits(record.name))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                _name_the_library,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                partial(_without_queries, render),
            ],
            foreign_pre_chain=stamp,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.INFO))
    for name in WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _without_queries(render: Processor, log: WrappedLogger, method: str, event: EventDict) -> str:
    """The line of a library without the values of URLs' queries: whatever it reached may be a secret's address."""
    return _QUERIED.sub(r"\1***", str(render(log, method, event)))


def _name_the_library(log: WrappedLogger, method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event
