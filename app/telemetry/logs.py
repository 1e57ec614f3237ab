"""Sets up the log: one JSON object per line on stderr (or lines for a terminal), for this process and its libraries.

Query texts are logged only with `log.bodies`; texts of hits never are.
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

VERBOSE_LIBRARIES = ("httpx2", "httpcore2", "mcp")
"""Libraries that log every request, with whole URLs and the secrets in them: only their warnings are logged."""

_QUERIED = re.compile(r"""([?&][^\s=&?"'<>()]+=)[^\s&"'\\<>()]+""")
"""A value in the query part of a URL."""


def configure(
    style: str,
    level: str,
    dumps: Callable[[Any], bytes],
    stream: TextIO | None = None,
    budget: LogAllowance | None = None,
) -> None:
    """Set up the log once per process; `style` is `json` or `console`, `dumps` writes JSON.

    `budget`: how many lines one kind of event may have; None means no limit.
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
    """Drop the line if there were too many of its kind."""
    if rate_limit.admits(event["event"]):
        return event
    raise structlog.DropEvent


def _tell_suppressed(render: Processor, out: Any, kind: str, count: int) -> None:
    """Log how many lines were dropped, whatever the log level: the dropped lines had passed it."""
    line = _stamp(None, "warning", {"event": "suppressed", "kind": kind, "count": count})
    out.write(str(render(None, "warning", line)) + "\n")


def _stamp(log: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add level and time, in one step, since a line is written for every request."""
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
    except TypeError:  # a value that JSON cannot hold must cost neither the line nor its request
        shown = {str(key): value if type(value) is str else repr(value) for key, value in event.items()}
        return dumps({key: value.encode("utf-8", "replace").decode() for key, value in shown.items()}).decode()


def _adopt_libraries(
    stamp: list[Processor], render: Processor, out: Any, level: str, rate_limit: LogRateLimit | None
) -> None:
    """Format what libraries log through `logging` the same way. For the rate limit, a library is one kind of event."""
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
    for name in VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def _without_queries(render: Processor, log: WrappedLogger, method: str, event: EventDict) -> str:
    """The line of a library without the values in URL queries, which may be secrets."""
    return _QUERIED.sub(r"\1***", str(render(log, method, event)))


def _name_the_library(log: WrappedLogger, method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event
