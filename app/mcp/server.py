"""The MCP server itself: the official SDK's low-level server, told what this gateway has to say in each method.

Decides which errors are the protocol's and which are a tool's, and what is advertised to whom. It refuses to know HTTP
beyond where the door has put the caller.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    DiscoverResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from app.api.caller import Caller
from app.api.running_requests import RunningRequests
from app.mcp import tool_definitions
from app.mcp.http_exchange import McpHttpExchange
from app.mcp.progress_reporter import McpProgressReporter
from app.mcp.tools import ExtensionNeeded, Tools, UnknownTool
from app.telemetry.metric_groups import McpMetrics

CALLER, PLACE, EXCHANGE = "rcp.caller", "rcp.place", "rcp.exchange"
"""The keys of the ASGI scope under which the door puts the Caller, the Place taken for it, and the Exchange."""

TOOLS_FRESH = CacheHint(ttl_ms=3_600_000, scope="public")
"""The tools are the same for everybody and change with releases only."""

DISCOVERED_FRESH = CacheHint(ttl_ms=60_000, scope="private")
"""What engines can do may change, and differs from caller to caller."""

CANCELLED = "notifications/cancelled"
"""Before 2026-07-28 a client calls a request off in a request of its own; since then it closes the stream."""

METHODS = frozenset(
    {
        CANCELLED,
        "initialize",
        "notifications/initialized",
        "ping",
        "server/discover",
        "tools/call",
        "tools/list",
    }
)
"""Methods that logs may carry as they are."""

Context = ServerRequestContext[Any, Any]


class AdmissionSlot:
    """The place of one request at the gate of the gateway; left once, by whoever comes first to it."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """The request is answered, however slowly its client may read that."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()

    def __repr__(self) -> str:
        return f"<Place {'left' if self._leave is None else 'taken'}>"


class McpServer:
    """The methods of one gateway's MCP server."""

    def __init__(self, toolbox: Tools, metrics: McpMetrics, name: str, version: str) -> None:
        self._toolbox = toolbox
        self._metrics = metrics
        self._in_flight = RunningRequests()
        self._tools = ListToolsResult.model_validate({"tools": tool_definitions.TOOLS})
        self.sdk: Server[Any] = Server(
            name,
            version=version,
            title="RCP gateway",
            instructions=tool_definitions.INSTRUCTIONS,
            cache_hints={"tools/list": TOOLS_FRESH, "server/discover": DISCOVERED_FRESH},
            get_tool_input_schema=tool_definitions.INPUTS.get,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self.sdk.add_request_handler("server/discover", RequestParams, self._discover)
        self.sdk.middleware[:] = [self._instrumentation]

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(code=INVALID_PARAMS, message="this cursor leads nowhere: the list of tools has one page")
        return self._tools

    async def _discover(self, ctx: Context, params: RequestParams) -> DiscoverResult:
        """What is offered to this caller; the extension's settings are the merged RCP capabilities that it sees."""
        offered = self.sdk.get_capabilities(
            extensions={tool_definitions.EXTENSION: dict(await self._toolbox.capabilities(caller_of(ctx)))},
            protocol_version=ctx.protocol_version,
        )
        return DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=offered,
            instructions=tool_definitions.INSTRUCTIONS,
        )

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> Any:
        told = McpProgressReporter(ctx.session.report_progress) if _wants_progress(ctx) else None
        try:
            result = await self._toolbox.call(
                params.name, params.arguments, caller_of(ctx), told, extended=_declares_extension(ctx)
            )
            if told is not None:
                await told.finish()
        except UnknownTool:
            known = ", ".join(tool_definitions.NAMES)
            raise MCPError(
                code=INVALID_PARAMS, message=f"there is no tool {params.name[:100]!r}; there are {known}"
            ) from None
        except ExtensionNeeded:
            raise MCPError(
                code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"raw results are for clients that declare the extension {tool_definitions.EXTENSION}",
                data={"requiredCapabilities": {"extensions": {tool_definitions.EXTENSION: {}}}},
            ) from None
        finally:
            if told is not None:
                told.end()
        return result

    async def _instrumentation(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Count one message and say what the log is told of it; a call may be called off meanwhile."""
        started = perf_counter()
        outcome, code = "error", None
        session = caller_of(ctx).cancel_scope
        _exchange_of(ctx).message_id = ctx.request_id
        if ctx.method == CANCELLED and session is not None:
            named = (ctx.params or {}).get("requestId")
            if isinstance(named, str | int):
                self._in_flight.cancel(session, named)
        running = None
        if ctx.method == "tools/call" and ctx.request_id is not None and session is not None:
            running = self._in_flight.enter(session, ctx.request_id)
        try:
            result = await call_next(ctx)
            outcome = "failed" if isinstance(result, Mapping) and result.get("isError") else "ok"
        except MCPError as fault:
            code = fault.error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            if running is None or not running.is_the_cause():
                raise
            code = REQUEST_CANCELLED
            raise MCPError(code=code, message="cancelled by the client") from None
        finally:
            if running is not None:
                self._in_flight.leave(running)
            _place_of(ctx).leave()
            self._told(ctx, outcome, code, perf_counter() - started)
        return result

    def _told(self, ctx: Context, outcome: str, code: int | None, took: float) -> None:
        caller = caller_of(ctx)
        line: dict[str, Any] = {"request_id": caller.request_id}
        if caller.tenant is not None:
            line |= {"tenant": caller.tenant.id, "key": caller.key_id}
        line |= {"method": ctx.method if ctx.method in METHODS else "other", "outcome": outcome}
        if ctx.method == "tools/call":
            name = (ctx.params or {}).get("name")
            line["tool"] = name if name in tool_definitions.NAMES else "other"
            self._metrics.call(line["tool"], outcome)
        _exchange_of(ctx).note({**line, "code": code, "ms": round(took * 1000, 2)})

    def __repr__(self) -> str:
        return f"<McpServer {self.sdk.name} {self.sdk.version}, {self._toolbox!r}, {self._in_flight!r}>"


def caller_of(ctx: Context) -> Caller:
    """Whom the door let in."""
    assert ctx.request is not None, "it came over HTTP"
    caller: Caller = ctx.request.scope[CALLER]
    return caller


def _place_of(ctx: Context) -> AdmissionSlot:
    assert ctx.request is not None, "it came over HTTP"
    place: AdmissionSlot = ctx.request.scope[PLACE]
    return place


def _exchange_of(ctx: Context) -> McpHttpExchange:
    assert ctx.request is not None, "it came over HTTP"
    exchange: McpHttpExchange = ctx.request.scope[EXCHANGE]
    return exchange


def _wants_progress(ctx: Context) -> bool:
    meta = (ctx.params or {}).get("_meta")
    return isinstance(meta, Mapping) and meta.get("progressToken") is not None


def _declares_extension(ctx: Context) -> bool:
    """Whether this very request says so; before 2026-07-28 requests say nothing of their client."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and tool_definitions.EXTENSION in (capabilities.extensions or {})
