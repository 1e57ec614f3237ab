"""Where an engine's answer becomes a result or a LegError of ours, whatever it looks like."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.transport import call_error_of, read_reply, result_of
from app.protocol.errors import LegError, LegRateLimited, ProtocolViolation, Refused


def body(**members: Any) -> bytes:
    """A response to call 7, as bytes."""
    return json.dumps({"jsonrpc": "2.0", "id": 7, **members}).encode()


def test_result_is_handed_over() -> None:
    """The result object is the answer, whatever else the engine adds beside it."""
    assert read_reply(body(result={"hits": []}, extra=1), 7) == {"hits": []}
    assert read_reply(bytearray(body(result={})), 7) == {}
    assert read_reply(bytearray(body(result={})), 7) == {}


@pytest.mark.parametrize("answered", [7, "7", 7.0])
def test_own_id_is_known_again(answered: Any) -> None:
    """An id that comes back as a string or with a fraction of nothing is still ours (B77)."""
    assert result_of({"id": answered, "result": {}}, 7) == {}


@pytest.mark.parametrize("answered", [8, "8", "07", None, "", [7], {"id": 7}, 7.5])
def test_result_for_another_id_is_none(answered: Any) -> None:
    """A result that carries another request's id is not taken for ours."""
    with pytest.raises(ProtocolViolation, match="another request"):
        result_of({"id": answered, "result": {}}, 7)


def test_boolean_is_no_id() -> None:
    """true is not 1: a boolean never stands for an id."""
    with pytest.raises(ProtocolViolation, match="another request"):
        result_of({"id": True, "result": {}}, 1)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="empty body"),
        pytest.param(b"<html>502</html>", id="HTML"),
        pytest.param(b'{"id": 7, "result": {"hi', id="truncated"),
        pytest.param(b"\xef\xbb\xbf{}", id="BOM"),
        pytest.param(b"[" * 2000 + b"]" * 2000, id="nested without end"),
        pytest.param(b"[]", id="batch"),
        pytest.param(b"null", id="null"),
        pytest.param(b"7", id="number"),
        pytest.param(body(), id="neither result nor error"),
        pytest.param(body(result=None), id="null result"),
        pytest.param(body(result=[]), id="array as result"),
        pytest.param(body(result="pong"), id="string as result"),
        pytest.param(body(error="broken"), id="error is no object"),
        pytest.param(body(error=False), id="error is false"),
        pytest.param(body(error={}), id="error without a code"),
        pytest.param(body(error={"code": True}), id="code is a boolean"),
        pytest.param(body(error={"code": "-32602"}), id="code is a string"),
    ],
)
def test_nonsense_is_a_protocol_fault(answer: bytes) -> None:
    """Whatever is not a JSON-RPC response to our call is the engine's fault, of the class protocol (B46)."""
    with pytest.raises(ProtocolViolation):
        read_reply(answer, 7)


def test_null_error_beside_a_result_counts_as_absent() -> None:
    """`error: null` says that there is none."""
    assert read_reply(body(result={"hits": []}, error=None), 7) == {"hits": []}


def test_error_wins_over_a_result() -> None:
    """An answer with both is an error."""
    with pytest.raises(Refused):
        read_reply(body(result={}, error={"code": -32005, "message": "no"}), 7)


def test_error_without_an_id_is_ours() -> None:
    """An engine that could not read the request answers `id: null`; on our own wire that can only be ours."""
    with pytest.raises(ProtocolViolation) as fault:
        read_reply(body(id=None, error={"code": -32700, "message": "parse error"}), 7)
    assert fault.value.code == -32700


def test_error_for_another_id_is_none() -> None:
    """An error that carries another request's id says nothing about ours."""
    with pytest.raises(ProtocolViolation, match="another request") as fault:
        read_reply(body(id=8, error={"code": -32602, "message": "k"}), 7)
    assert fault.value.code is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32001, "refused"),
        (-32602, "refused"),
        (-32010, "refused"),
        (-32014, "refused"),
        (42, "refused"),
        (-32011, "rate_limited"),
        (-32603, "protocol"),
        (-32700, "protocol"),
    ],
)
def test_code_decides_the_class(code: int, kind: str) -> None:
    """Each code belongs to one class, and both code and message are kept for the note."""
    fault = call_error_of({"code": code, "message": "because"})
    assert (fault.kind, fault.code, fault.message) == (kind, code, f"{code} because")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(250, 250), (0, 0), (700.0, 700), (-1, None), ("250", None), (True, None), (2.5, None), (None, None)],
)
def test_wait_is_kept_if_it_is_one(sent: Any, kept: int | None) -> None:
    """`retryAfterMs` is kept if it is a non-negative integer (RCP §12), which 700.0 is (§4.6)."""
    fault = call_error_of({"code": -32011, "message": "later", "data": {"retryAfterMs": sent}})
    assert isinstance(fault, LegRateLimited)
    assert fault.retry_after_ms == kept


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"field": "passages", "secret": 1}, {"field": "passages"}),
        ({"option": "method", "field": 7}, {"option": "method"}),
        ({"field": "line\n" + "x" * 1000}, {"field": "line " + "x" * 294 + "…"}),
        ({"field": ["x"]}, None),
        (["field"], None),
        (None, None),
    ],
)
def test_what_a_refusal_names_is_kept(data: Any, kept: Any) -> None:
    """The field or option that an engine names, made fit for a note; nothing else of its data."""
    assert call_error_of({"code": -32602, "message": "no", "data": data}).culprit == kept


def test_message_is_made_fit_for_a_note() -> None:
    """A foreign message is cleaned and cut, and one that is no string is left out."""
    assert call_error_of({"code": -32602, "message": {"a": 1}}).message == "-32602"
    message = call_error_of({"code": -32602, "message": "line\nline\x1b[31m" + "x" * 1000}).message
    assert message.isprintable()
    assert len(message) <= 300


Junk = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["7", "x", ""]) | st.just(7.0),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "result", "error", "code", "message", "data"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(Junk)
def test_whatever_comes_is_a_result_or_a_engine_call_error(message: Any) -> None:
    """No answer, however odd, raises anything but a LegError or yields anything but an object."""
    try:
        assert type(result_of(message, 7)) is dict
    except LegError as fault:
        refused = fault
        assert refused.message
