"""The method names of RCP §7 and the capability that gates each."""

from types import MappingProxyType
from typing import Final

PROTOCOL_VERSION: Final = 1

UNGATED: Final = frozenset({"initialize", "info", "ping", "shutdown"})

GATES: Final = MappingProxyType(
    {
        "embed": "embed",
        "embed/sparse": "sparseEmbed",
        "embed/multi": "multiVector",
        "rerank": "rerank",
        "retrieve": "retrieve",
        "query/transform": "transform",
        "graph": "graph",
        "index/add": "index",
        "index/delete": "index",
        "catalog/list": "catalog",
        "feedback": "feedback",
        "memory/build": "memory",
        "memory/recall": "memory",
    }
)
"""Method -> the capability that must be advertised for it (RCP §7)."""


def gate_of(method: str) -> str | None:
    """The capability that gates `method`, or None if it is no gated method of RCP.

    A vendor extension `x-<vendor>/<name>` is gated by `x-<vendor>` (RCP §6.2).
    """
    capability = GATES.get(method)
    if capability is None and method.startswith("x-"):
        vendor, slash, name = method.partition("/")
        if slash and name and len(vendor) > 2:
            return vendor
    return capability
