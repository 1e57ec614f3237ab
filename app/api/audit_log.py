"""The log line of each request: caller, method, engines and outcome.

It never contains a hit, and contains the query only with `log.bodies`.
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
"""Method names that logs contain unchanged."""

MAX_NAMED = 20
"""Most engines that a line lists. Beyond it, the line contains their number, and the failures by reason."""

MAX_QUERY = 1000
"""Most characters of a query in a line."""


class AuditLog:
    """Collects what is logged of one request. Its outcome is `error` until a result is recorded."""

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
        """Record the result."""
        meta = result.get("_meta") or {}
        if "degraded" in meta:
            self.outcome = "degraded"
            self._lost = meta["degraded"]
        else:
            self.outcome = "ok"
        gateway = meta.get("x-gateway") or {}
        self.engines = gateway.get("engines") or ()
        self._cache = (gateway.get("cache") or {}).get("status")
        # Other methods than `retrieve` may have no hits; a line then has no number of them.
        hits = result.get("hits")
        self._listed = type(hits) is list
        self.hits = len(hits) if type(hits) is list else 0

    def failed(self, error: RcpError) -> None:
        """Record the error."""
        self.code = error.code
        self.engines = error.engines

    def attributes(self) -> dict[str, str | int | float]:
        """Attributes of the trace span."""
        code: dict[str, str | int | float] = {} if self.code is None else {"code": self.code}
        return {**code, "hits": self.hits}

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of the engines that the answer lacks."""
        return tuple(self._lost)

    def reasons(self) -> set[str]:
        """The reasons for which engines are missing from the answer."""
        return {engine["reason"] for engine in self.engines if engine["id"] in self._lost and engine.get("reason")}

    def line(self, request: Request, caller: Caller, took: float, size: int | None, *, bodies: bool) -> dict[str, Any]:
        """The fields of the log line. `took` in seconds; `size` of the response in bytes, None if unknown."""
        line: dict[str, Any] = {"request_id": caller.request_id}
        if caller.tenant is not None:
            line["tenant"] = caller.tenant.id
            line["key"] = caller.key_id
        if caller.trace is not None:
            line["trace"] = caller.trace.id
        line["method"] = known(request.method)
        line["outcome"] = self.outcome
        line["code"] = self.code
        # Skipped engines got no call, so they neither answered nor failed.
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
    """The method as metrics and logs name it."""
    # Callers can send any name, and must not create metric series at will.
    if method in METHODS:
        return method
    return "other" if gate_of(method) is None else EVERY_EXTENSION


def _query(params: Mapping[str, Any]) -> str | None:
    query = params.get("query")
    return query[:MAX_QUERY] if type(query) is str else None if query is None else repr(query)[:MAX_QUERY]
