"""The metric of MCP's tools: which were called, and how that ended.

Label values are the tools that there are and the words below, so that no caller can add a series.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

MCP_OUTCOMES = ("ok", "failed", "error", "cancelled")
"""A tool gave its result; said why it could not; the call was an error of the protocol; or it was called off."""
OTHER = "other"
"""A tool that there is not."""


class McpMetrics:
    """What MCP clients call."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "rcp_gateway_mcp_calls", "Tool calls of MCP clients.", ["tool", "outcome"], registry=registry
        )

    def declare(self, tools: Iterable[str]) -> None:
        """Let every series of these tools exist with 0."""
        for tool in (*tools, OTHER):
            for outcome in MCP_OUTCOMES:
                self._calls.labels(tool, outcome)

    def call(self, tool: str, outcome: str) -> None:
        """One call has ended; `outcome` is one of MCP_OUTCOMES."""
        self._calls.labels(tool, outcome).inc()
