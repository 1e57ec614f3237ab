"""The log line of each request: caller, method, engines asked, and outcome.

It never holds a hit, and holds the query only with `log.bodies`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.caller import Caller
from app.federation.capabilities import EVERY_EXTENSION
from app.protocol.envelope import Request
from app.protocol.errors import RcpError
from app.protocol.method_names import GATES, UNGATED, gate_of

METHODS = frozenset({*UNGATED, *GATES})
"""Every method name that logs may carry as it is."""

MAX_NAMED = 20
"""Engines that a line names. Of more it has their number, and failures by reason."""

MAX_QUERY = 1000
"""Characters of a query that a line holds."""


class AuditLog:
    """What one request has come to so far; until it has ended well, `error`."""

    __slots__ = ("_cache", "_listed", "_lost", "code", "engines", "hits", "outcome")

    def __init__(self) -> None:
        self.outcome = "error"
        self.code: int | None = None
        self.engines: Sequence[Mapping[str, Any]] = ()
        self.hits = 0
        self._listed = False
        self._lost: Sequence[str] = ()
        self._cache: str | None = None

    def answered(self, result: Mapping[str, Any]) -> None:
        """It was answered with this result."""
        meta = result.get("_meta") or {}
        if "degraded" in meta:
            self.outcome = "degraded"
            self._lost = meta["degraded"]
        else:
            self.outcome = "ok"
        gateway = meta.get("x-gateway") or {}
        self.engines = gateway.get("engines") or ()
        self._cache = (gateway.get("cache") or {}).get("status")
        hits = result.get("hits")
        self._listed = type(hits) is list
        self.hits = len(hits) if type(hits) is list else 0

    def failed(self, error: RcpError) -> None:
        """It was answered with this error."""
        self.code = error.code
        self.engines = error.engines

    def attributes(self) -> dict[str, str | int | float]:
        """What its span is told."""
        code: dict[str, str | int | float] = {} if self.code is None else {"code": self.code}
        return {**code, "hits": self.hits}

    def reasons(self) -> set[str]:
        """Why the answer lacks engines."""
        return {engine["reason"] for engine in self.engines if engine["id"] in self._lost and engine.get("reason")}

    def line(self, request: Request, caller: Caller, took: float, size: int | None, *, bodies: bool) -> dict[str, Any]:
        """What the log is told; `took` in seconds, `size` in bytes of the answer, None if another line tells it."""
        line: dict[str, Any] = {"request_id": caller.request_id}
        if caller.tenant is not None:
            line["tenant"] = caller.tenant.id
            line["key"] = caller.key_id
        if caller.trace is not None:
            line["trace"] = caller.trace.id
        line["method"] = known(request.method)
        line["outcome"] = self.outcome
        line["code"] = self.code
        asked = [engine for engine in self.engines if engine["status"] != "skipped"]
        if asked:
            lost = {engine["id"]: engine.get("reason") for engine in asked if engine["status"] != "ok"}
            many = len(asked) > MAX_NAMED
            line["asked"] = len(asked) if many else [engine["id"] for engine in asked]
            line["answered"] = len(asked) - len(lost)
            if lost:
                line["failed"] = Counter(lost.values()) if many else lost
        if self._cache is not None:
            line["cache"] = self._cache
        if self._listed:
            line["hits"] = self.hits
        line["ms"] = round(took * 1000, 2)
        if size is not None:
            line["bytes"] = size
        if bodies:
            line["query"] = _query(request.params)
        return line

    def __repr__(self) -> str:
        return f"<AuditLog {self.outcome}, {len(self.engines)} engines, {self.hits} hits>"


def known(method: str) -> str:
    """The method as metrics and logs name it: names that callers invent are one, vendors' methods another."""
    if method in METHODS:
        return method
    return "other" if gate_of(method) is None else EVERY_EXTENSION


def _query(params: Mapping[str, Any]) -> str | None:
    query = params.get("query")
    return query[:MAX_QUERY] if type(query) is str else None if query is None else repr(query)[:MAX_QUERY]
