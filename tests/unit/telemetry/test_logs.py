"""The log: one line per event whatever is in it, ours and the libraries' alike."""

import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from app import main
from app.protocol import envelope
from app.settings.operators import LogSettings
from app.telemetry import logs
from app.telemetry.log_rate_limit import LogAllowance
from tests.support.log_lines import LogLines, own_log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put the process's log back as it was."""
    with own_log():
        yield


def configured(style: str = "json", level: str = "info") -> LogLines:
    """Set the log up to write into what is returned."""
    return LogLines().configure(style, level)


def test_event_is_one_line_of_json() -> None:
    """An event carries its name, level, time and values, and line breaks in them stay inside the line."""
    log = configured()
    logs.logger().info("request", method="retrieve", detail="two\nlines", ms=1.5, code=None)
    (line,) = log.lines
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {
        "event": "request",
        "level": "info",
        "method": "retrieve",
        "detail": "two\nlines",
        "ms": 1.5,
        "code": None,
    }


def test_level_is_a_threshold() -> None:
    """Events below the level are left out."""
    log = configured(level="warning")
    ours = logs.logger()
    ours.debug("a")
    ours.info("b")
    ours.warning("c")
    ours.error("d")
    assert [line["event"] for line in log.lines] == ["c", "d"]


def test_exception_is_one_line_with_its_traceback() -> None:
    """A traceback is a value of the line, complete and on that one line."""
    log = configured()
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        logs.logger().exception("internal_error", request_id="r-1")
    (line,) = log.lines
    assert (line["event"], line["level"], line["request_id"]) == ("internal_error", "error", "r-1")
    assert line["exception"].startswith("Traceback (most recent call last)")
    assert line["exception"].endswith("ZeroDivisionError: by nothing")
    assert "exc_info" not in line


def test_exception_without_one() -> None:
    """Logging an exception where there is none is harmless."""
    log = configured()
    logs.logger().exception("internal_error")
    assert log.lines[0]["event"] == "internal_error"


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, Path("x"), ValueError("v"), "\ud800", 2**70, {1: 2}, b"bytes"],
    ids=lambda v: type(v).__name__,
)
def test_odd_value_never_costs_the_line(value: object) -> None:
    """A value that JSON cannot say is written as it would be printed; the caller never hears of it."""
    log = configured()
    logs.logger().info("odd", value=value, fine="yes")
    (line,) = log.lines
    assert line["event"] == "odd"
    assert line["fine"] == "yes"
    assert "value" in line


def test_libraries_come_out_in_the_same_form() -> None:
    """What a library says through `logging` is a line like ours, with its logger's name."""
    log = configured()
    logging.getLogger("uvicorn.error").warning("%s of %d", "three", 4)
    (line,) = log.lines
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {"event": "three of 4", "level": "warning", "logger": "uvicorn.error"}


def test_traceback_of_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    """A library's exception is one line as well, and formatting it complains to nobody."""
    log = configured()
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved\nfuture: <Task>")
    (line,) = log.lines
    assert line["exception"].endswith("KeyError: 'k'")
    assert (line["level"], line["logger"]) == ("error", "asyncio")
    assert capsys.readouterr().err == ""


def test_libraries_say_nothing_below_info() -> None:
    """Debug level is for our own events; libraries stay at info."""
    log = configured(level="debug")
    logging.getLogger("asyncio").debug("Using selector")
    logs.logger().debug("ours")
    assert [line["event"] for line in log.lines] == ["ours"]


@pytest.mark.parametrize("level", ["debug", "info"])
def test_urls_of_engines_stay_out(level: str) -> None:
    """The HTTP client's line per request, which holds the URL and what is secret in it, is not written (B102)."""
    log = configured(level=level)
    logging.getLogger("httpx2").info('HTTP Request: POST http://engine/rcp?key=SECRET "HTTP/1.1 200 OK"')
    assert log.text == ""
    logging.getLogger("httpx2").warning("something is wrong")
    assert len(log.lines) == 1


def test_queries_of_urls_are_left_out_of_what_libraries_say() -> None:
    """A library that cannot reach an address tells it, key and all; of a query only the names come through."""
    log = configured()
    said = "Max retries exceeded with url: /v1/traces?api-key=SECRET&x=SECRET (Caused by 'http://h/?k=SECRET')"
    try:
        raise OSError(said)
    except OSError:
        logging.getLogger("a.library").exception("cannot export: %s", said)
    assert "SECRET" not in log.text
    (line,) = log.lines
    told = "Max retries exceeded with url: /v1/traces?api-key=***&x=*** (Caused by 'http://h/?k=***')"
    assert line["event"] == f"cannot export: {told}"
    assert line["exception"].endswith(f"OSError: {told}")


def test_console_style_is_readable() -> None:
    """The console style writes lines for people, with plain tracebacks and no colours where there is no terminal."""
    log = configured("console")
    logs.logger().info("engine_up", engine="docs")
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        logs.logger().exception("internal_error")
        logging.getLogger("uvicorn.error").exception("library")
    text = log.text
    assert "engine_up" in text
    assert "engine=docs" in text
    assert text.count("ZeroDivisionError: by nothing") == 2
    assert "\x1b" not in text


def test_configuring_again_replaces() -> None:
    """A second set-up takes the place of the first; no line is written twice."""
    first = configured()
    second = configured()
    logging.getLogger("uvicorn.error").warning("once")
    assert first.text == ""
    assert len(second.lines) == 1


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_storm_is_cut_short(style: str) -> None:
    """Of one kind so many lines and one that counts the rest; records and other kinds are written as ever."""
    now = [0.0]
    log = LogLines()
    logs.configure(style, "error", envelope.dumps, log.stream, LogAllowance(2, 10, lambda: now[0]))
    for _ in range(50):
        logs.logger().error("internal_error")
        logs.logger().error("request")
        logging.getLogger("uvicorn.error").error("Invalid HTTP request received.")
    logging.getLogger("asyncio").error("something else")
    now[0] = 10.0
    logs.logger().error("request")
    told = [line for line in log.text.splitlines() if "suppressed" in line]
    assert [log.text.count(word) for word in ("something else", "Invalid")] == [1, 2]
    assert sum("request" in line and "Invalid" not in line for line in log.text.splitlines()) == 51
    assert len(told) == 2
    if style == "json":
        counts = {line["kind"]: line["count"] for line in log.lines if line["event"] == "suppressed"}
        assert counts == {"internal_error": 48, "uvicorn.error": 48}
        assert {line["level"] for line in log.lines if line["event"] == "suppressed"} == {"warning"}


@pytest.mark.parametrize(("most", "written"), [(0, 300), (5, 5), (100, 100)])
def test_settings_say_how_many(most: int, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log.max_per_kind` lines in `log.per_kind_seconds`; 0 limits nothing."""
    log = LogLines()
    monkeypatch.setattr("sys.stderr", log.stream)
    main.start_log(LogSettings(max_per_kind=most, per_kind_seconds=3600.0))
    for _ in range(300):
        logs.logger().info("refused")
    assert sum(line["event"] == "refused" for line in log.lines) == written
