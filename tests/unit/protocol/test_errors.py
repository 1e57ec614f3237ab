"""The error tree: codes as RCP gives them, classes as notes and metrics name them."""

import inspect

import pytest

from app.protocol import errors
from app.protocol.errors import (
    CALL_KINDS,
    MAX_MESSAGE,
    ForeignError,
    GatewayError,
    InvalidParams,
    LegError,
    LegRateLimited,
    RcpError,
    Refused,
    clip,
)

CODES = {
    "ParseError": -32700,
    "InvalidRequest": -32600,
    "InvalidParams": -32602,
    "InternalError": -32603,
    "NotInitialized": -32001,
    "VersionMismatch": -32002,
    "CapabilityMissing": -32003,
    "UnknownMethod": -32004,
    "OptionUnsupported": -32005,
    "Cancelled": -32006,
    "BackendUnavailable": -32010,
    "RateLimited": -32011,
    "Unauthorized": -32012,
    "PayloadTooLarge": -32013,
    "DeadlineExceeded": -32014,
    "NotFound": -32015,
    "Conflict": -32016,
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_each_code_of_rcp_has_its_error(name: str, code: int) -> None:
    """Every code of RCP's table has one class, and its body carries code and message."""
    error = getattr(errors, name)("gone")
    assert isinstance(error, RcpError)
    assert error.body() == {"code": code, "message": "gone"}
    assert str(error) == "gone"


def test_codes_are_unique() -> None:
    """No two errors share a code, so that a code names one thing in metrics."""
    codes = [error.code for error in RcpError.__subclasses__() if error is not ForeignError]
    assert len(codes) == len(set(codes)) == len(CODES)


def test_tree_in_the_docstring_is_the_tree() -> None:
    """The tree drawn in the module's docstring names every error there is."""
    drawn = errors.__doc__ or ""
    for name, member in inspect.getmembers(errors, inspect.isclass):
        if issubclass(member, GatewayError) and member is not ForeignError:
            assert name in drawn, f"{name} is missing from the drawing"


def test_data_is_kept_as_given() -> None:
    """Structured data goes into `data`, and the repr shows all that an incident needs."""
    error = InvalidParams("no", field="k", detail="d")
    assert error.body()["data"] == {"field": "k", "detail": "d"}
    assert repr(error) == "InvalidParams(-32602, 'no', {'field': 'k', 'detail': 'd'})"


def test_foreign_error_keeps_its_code() -> None:
    """An engine's own error is passed on with its code, known to us or not."""
    assert ForeignError(-31999, "odd", engine="docs").body() == {
        "code": -31999,
        "message": "odd",
        "data": {"engine": "docs"},
    }


def test_engine_call_kinds_are_the_classes_of_the_tree() -> None:
    """Every way a leg can fail has a class of its own, known from the start."""
    assert list(CALL_KINDS) == sorted(set(CALL_KINDS))
    assert {"timeout", "connect", "tls", "http_status", "protocol", "too_large", "rate_limited"} <= set(CALL_KINDS)
    assert {"refused", "overloaded"} <= set(CALL_KINDS)
    assert len(CALL_KINDS) == len(LegError.__subclasses__())


def test_engine_call_error_carries_what_the_report_needs() -> None:
    """A leg's failure knows class, message, code, attempts and what it was asked to wait."""
    error = LegRateLimited("slow down", code=-32011, retry_after_ms=250)
    assert (error.kind, error.code, error.retry_after_ms, error.attempts) == ("rate_limited", -32011, 250, 1)
    assert repr(error) == "LegRateLimited(rate_limited, 'slow down', code=-32011, attempts=1)"


def test_foreign_text_is_fit_for_a_note() -> None:
    """Control, bidi and line characters of a foreign text become spaces, and its length is bounded."""
    assert clip("plain text – ünï 🙂") == "plain text – ünï 🙂"
    assert clip("a\nb\r\x1b[31m\x00\u202e\u2028\ud800z") == "a b  [31m    z"
    assert len(clip("x" * 10_000)) == MAX_MESSAGE
    assert clip("x" * 10_000).endswith("…")
    assert clip("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert clip("") == ""
    assert Refused("a\nb").message == "a b"
