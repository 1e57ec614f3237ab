"""The line that a request leaves in the log."""

from typing import Any

from app.api.audit_log import MAX_QUERY, AuditLog, known
from app.api.caller import Caller
from app.federation.tenants import Tenant
from app.protocol.envelope import Request
from app.protocol.errors import BackendUnavailable

REPORT = [
    {"id": "a", "status": "ok"},
    {"id": "b", "status": "failed", "reason": "timeout"},
    {"id": "c", "status": "skipped", "reason": "disabled"},
]


def line(audit: AuditLog, caller: Caller, *, bodies: bool = False, **params: Any) -> dict[str, Any]:
    """The line of a retrieve."""
    return audit.line(Request("retrieve", params, 1, False), caller, 0.0123, 99, bodies=bodies)


def test_reasons_of_what_an_answer_lacks() -> None:
    """Each class of failure once, also of an engine that was left alone; none of an answer that lacks nobody."""
    report = [*REPORT, {"id": "d", "status": "skipped", "reason": "breaker_open"}, {**REPORT[1], "id": "e"}]
    audit = AuditLog()
    audit.answered({"hits": [], "_meta": {"degraded": ["b", "d", "e"], "x-gateway": {"engines": report}}})
    assert audit.reasons() == {"timeout", "breaker_open"}
    audit.answered({"hits": [], "_meta": {"x-gateway": {"engines": REPORT}}})
    assert audit.outcome == "ok"


def test_an_answer() -> None:
    """Who asked whom, who was lost and why, how many hits and bytes."""
    audit = AuditLog()
    audit.answered({"hits": [1, 2], "_meta": {"degraded": ["b"], "x-gateway": {"engines": REPORT}}})
    assert line(audit, Caller("r", tenant=Tenant("t"), key_id="k")) == {
        "request_id": "r",
        "tenant": "t",
        "key": "k",
        "method": "retrieve",
        "outcome": "degraded",
        "code": None,
        "asked": ["a", "b"],
        "answered": 1,
        "failed": {"b": "timeout"},
        "hits": 2,
        "ms": 12.3,
        "bytes": 99,
    }
    assert repr(audit) == "<AuditLog degraded, 3 engines, 2 hits>"


def test_no_hits_are_a_number_of_hits() -> None:
    """An answer that holds a list of none says 0, one without a list nothing; nor is an unknown size said."""
    audit = AuditLog()
    audit.answered({"hits": []})
    assert line(audit, Caller("r"))["hits"] == 0
    audit.answered({"accepted": 1})
    assert "hits" not in line(audit, Caller("r"))
    assert "bytes" not in audit.line(Request("retrieve", {}), Caller("r"), 0.1, None, bodies=False)


def test_an_error_knows_whom_it_was_about() -> None:
    """Engines that were asked in vain stand in the line as well."""
    error = BackendUnavailable("nobody")
    error.engines = REPORT[1:]
    audit = AuditLog()
    audit.failed(error)
    told = line(audit, Caller("r"))
    assert (told["outcome"], told["code"], told["answered"]) == ("error", -32010, 0)
    assert "tenant" not in told


def test_results_of_any_shape() -> None:
    """A result without a report, or without anything, is a line all the same."""
    for result in ({}, {"_meta": None}, {"_meta": {}, "hits": None}, {"_meta": {"x-gateway": {"id": "us"}}}):
        audit = AuditLog()
        audit.answered(result)
        assert "asked" not in line(audit, Caller("r"))


def test_bodies() -> None:
    """The query stands there on demand, cut to its bound; a method without one has none."""
    assert "query" not in line(AuditLog(), Caller("r"), query="q")
    assert line(AuditLog(), Caller("r"), bodies=True, query="q" * 5000)["query"] == "q" * MAX_QUERY
    assert line(AuditLog(), Caller("r"), bodies=True, query=[{"text": "x"}])["query"] == "[{'text': 'x'}]"
    assert line(AuditLog(), Caller("r"), bodies=True)["query"] is None


def test_methods_that_callers_make_up_are_not_named() -> None:
    """Only names of RCP stand in the log."""
    assert known("retrieve") == "retrieve"
    assert known("rm -rf") == "other"
