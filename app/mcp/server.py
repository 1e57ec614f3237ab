"""MCP messages and methods, for every transport: what is a message, which revision it is in, and how it is answered.

Two kinds of revision are spoken: 2026-07-28, in which each request describes itself, and the earlier ones, which begin
with `initialize`. Nothing is kept between requests in either.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, NamedTuple

from app.api.caller import Caller
from app.api.running_requests import RunningRequests
from app.mcp.rendering import clean, cleaned
from app.mcp.tool_definitions import EXTENSION, NAMES
from app.mcp.tools import ExtensionNeeded, ToolCall, Tools, UnknownTool
from app.protocol import envelope
from app.protocol.errors import InvalidParams, NotFound, RcpError
from app.telemetry.logs import logger
from app.telemetry.metric_groups import McpMetrics

Json = dict[str, Any]

MODERN: Final = "2026-07-28"
"""The revision in which each request is self-contained."""

HANDSHAKE: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions that begin with `initialize`, oldest first. Of 2024-11-05 its messages, not its HTTP+SSE transport."""

ASSUMED: Final = "2025-03-26"
"""The revision of an HTTP request that names none; later ones require the header."""

BATCHES: Final = "2025-03-26"
"""The one revision with JSON-RPC batches."""

LINKS_SINCE: Final = "2025-06-18"
"""The first revision with content of the type `resource_link`; clients of earlier ones reject it."""

_META: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = _META + "protocolVersion"
CAPABILITIES_KEY: Final = _META + "clientCapabilities"
SERVER_KEY: Final = _META + "serverInfo"

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, EXTENSION_NEEDED, VERSION_UNSUPPORTED, RESOURCE_NOT_FOUND = -32020, -32021, -32022, -32002
CANCELLED_CODE: Final = -32800

FRESH_MS: Final = 60_000
"""How long a client may cache the tools: they describe engines, which come and go."""

CANCELLED: Final = "notifications/cancelled"
"""How a request is cancelled, except over HTTP since 2026-07-28: there the client closes the connection."""

Notify = Callable[[bytes], None]
"""Sends a notification to the client of a request, without blocking."""


class McpError(Exception):
    """An error of the protocol, as opposed to a tool result with `isError`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def body(self, message_id: envelope.RequestId) -> bytes:
        """The JSON-RPC response."""
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return envelope.dumps({"jsonrpc": "2.0", "id": envelope.written_id(message_id), "error": error})


class McpMessage(NamedTuple):
    """One message of a client: a request, or a notification, which has no id."""

    method: str
    params: Json
    id: envelope.RequestId
    version: str
    """The revision it is in."""

    @property
    def modern(self) -> bool:
        return self.version == MODERN

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return meta if type(meta) is dict else {}


class McpAnswer(NamedTuple):
    """What a message is answered with."""

    body: bytes | None
    """None for a notification."""
    code: int | None = None
    """Of the error, if it is one."""
    line: Mapping[str, Any] | None = None
    """Its log line, which lacks only the bytes that were sent."""


def is_modern(message: Any) -> bool:
    """Whether a parsed message describes itself as since 2026-07-28. Earlier clients never send this key."""
    params = message.get("params") if type(message) is dict else None
    meta = params.get("_meta") if type(params) is dict else None
    return type(meta) is dict and VERSION_KEY in meta


def id_of(message: Any) -> envelope.RequestId:
    """The id that an error about a parsed message echoes; None if it has none, or one that MCP does not allow."""
    sent = message.get("id") if type(message) is dict else None
    return sent if type(sent) is str or envelope.is_integer_id(sent) else None


def read_message(message: Any, version: str) -> McpMessage:
    """A parsed message. Raises McpError."""
    if type(message) is not dict or message.get("jsonrpc") != "2.0":
        raise McpError(INVALID_REQUEST, "a message is a JSON object with 'jsonrpc': \"2.0\"")
    method, params = message.get("method"), message.get("params")
    if type(method) is not str or not method:
        raise McpError(INVALID_REQUEST, "'method' must be a string")
    message_id = id_of(message)
    # MCP is stricter than JSON-RPC: null and fractions cannot be matched to an answer by every client.
    if "id" in message and message_id is None:
        raise McpError(INVALID_REQUEST, "'id' must be a string or an integer")
    # Params that are JSON but no text (half a surrogate pair) or nest too deep have been marked by the parser.
    try:
        envelope.check_params(params)
    except InvalidParams as fault:
        raise McpError(INVALID_PARAMS, fault.message) from None
    if params is not None and type(params) is not dict:
        raise McpError(INVALID_PARAMS, "'params' must be an object")
    return McpMessage(method, params or {}, message_id, version)


def unsupported(version: str) -> McpError:
    """For a revision that is not spoken."""
    return McpError(
        VERSION_UNSUPPORTED,
        f"this revision is not spoken here: requests that describe themselves are answered in {MODERN}, and "
        f"{', '.join(HANDSHAKE)} begin with 'initialize'",
        {"supported": [MODERN], "requested": version[:100]},
    )


class McpServer:
    """The methods of one gateway's MCP server."""

    def __init__(self, tools: Tools, metrics: McpMetrics, name: str, version: str) -> None:
        self._tools = tools
        self._metrics = metrics
        self._name = name
        self._version = version
        self._in_flight = RunningRequests()
        self._methods = {
            "initialize": self._initialize,
            "ping": self._ping,
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
        }
        # What logs may contain unchanged; a client can send any other text as a method.
        self._known = {*self._methods, "tools/call", CANCELLED, "notifications/initialized"}
        metrics.declare(NAMES)

    async def answer(self, message: McpMessage, caller: Caller, notify: Notify | None = None) -> McpAnswer:
        """Answer one message. `notify` sends its progress, where the transport can. Raises CancelledError only."""
        started = perf_counter()
        # Notifications are never answered, not even unknown ones (JSON-RPC 2.0 §4.1).
        if message.id is None:
            if message.method == CANCELLED:
                self.cancel(message.params.get("requestId"), caller)
            return McpAnswer(None)
        outcome, fault, result = "error", None, Json()
        scope = caller.cancel_scope
        running = self._in_flight.enter(scope, message.id) if scope is not None else None
        try:
            result = await self._result(message, caller, notify)
            outcome = "failed" if result.get("isError") else "ok"
        except McpError as error:
            fault = error
        except RcpError as error:
            code = RESOURCE_NOT_FOUND if isinstance(error, NotFound) else INTERNAL
            # 2026-07-28 has no code of its own for a resource that does not exist.
            code = INVALID_PARAMS if message.modern and code == RESOURCE_NOT_FOUND else code
            # Notes of engines may be in it, and a host may show it.
            fault = McpError(code, clean(error.message), cleaned(error.data) or None)
        except asyncio.CancelledError:
            outcome = "cancelled"
            if running is None or not running.is_the_cause():
                raise
            fault = McpError(CANCELLED_CODE, "cancelled by the client")
        except Exception:  # noqa: BLE001 - the edge of a request: a fault of ours is an answer, too
            logger().exception("internal_error", request_id=caller.request_id, method=self._shown(message))
            fault = McpError(INTERNAL, "internal error; search the log for this request id")
        finally:
            if running is not None:
                self._in_flight.leave(running)
            line = self._record(message, caller, outcome, fault, perf_counter() - started)
            # Otherwise the transport logs the line, because it knows the bytes. A client that is gone gets none.
            if outcome == "cancelled" and fault is None:
                logger().info("mcp", **line, bytes=0)
        if fault is not None:
            return McpAnswer(fault.body(message.id), fault.code, line)
        return McpAnswer(envelope.success(message.id, self._stamped(message, result, caller)), None, line)

    def cancel(self, message_id: Any, caller: Caller) -> None:
        """Cancel the request of this id, if it is the caller's; other ids are ignored."""
        if caller.cancel_scope is not None and (type(message_id) is str or envelope.is_integer_id(message_id)):
            self._in_flight.cancel(caller.cancel_scope, message_id)

    async def _result(self, message: McpMessage, caller: Caller, notify: Notify | None) -> Json:
        if message.modern:
            _check_described(message)
        if message.method == "tools/call":
            return await self._call_tool(message, caller, notify)
        method = self._methods.get(message.method)
        # `initialize` and `ping` ended with the revision 2025-11-25, and `server/discover` began after it. It is
        # answered in any case, because clients of both kinds probe with it.
        if method is None or (message.modern and message.method in ("initialize", "ping")):
            raise McpError(METHOD_NOT_FOUND, f"this server has no method {message.method[:100]!r}")
        return await method(message, caller)

    async def _initialize(self, message: McpMessage, caller: Caller) -> Json:
        wanted = message.params.get("protocolVersion")
        if type(wanted) is not str:
            raise McpError(INVALID_PARAMS, "'protocolVersion' is missing")
        tools = self._tools.listed(caller)
        return {
            # A client that knows no revision of this list disconnects.
            "protocolVersion": wanted if wanted in HANDSHAKE else HANDSHAKE[-1],
            "capabilities": {"tools": {"listChanged": False}, "resources": {}},
            "serverInfo": self._info(tools.title),
            "instructions": tools.instructions,
        }

    async def _ping(self, message: McpMessage, caller: Caller) -> Json:
        return {}

    async def _discover(self, message: McpMessage, caller: Caller) -> Json:
        """What this caller is offered. The settings of the extension are the merged RCP capabilities that it sees."""
        extension = {EXTENSION: dict(await self._tools.capabilities(caller))}
        return {
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {"listChanged": False}, "resources": {}, "extensions": extension},
            "instructions": self._tools.listed(caller).instructions,
            **_cacheable("private"),
        }

    async def _list_tools(self, message: McpMessage, caller: Caller) -> Json:
        _check_one_page(message)
        return {"tools": self._tools.listed(caller).tools, **_cacheable(_scope(caller))}

    async def _list_resources(self, message: McpMessage, caller: Caller) -> Json:
        """Empty: there is one resource for each hit of each answer, and answers link to them."""
        _check_one_page(message)
        return {"resources": [], **_cacheable(_scope(caller))}

    async def _list_templates(self, message: McpMessage, caller: Caller) -> Json:
        _check_one_page(message)
        template = {
            "uriTemplate": "rcp://hit/{id}",
            "name": "hit",
            "title": "Hit",
            "description": "The text of a hit, by the id in a result of `search` or a link in one of `retrieve`",
            "mimeType": "text/markdown",
        }
        return {"resourceTemplates": [template], **_cacheable(_scope(caller))}

    async def _read_resource(self, message: McpMessage, caller: Caller) -> Json:
        uri = message.params.get("uri")
        if type(uri) is not str:
            raise McpError(INVALID_PARAMS, "'uri' is missing")
        return {**await self._tools.read_resource(uri, caller), **_cacheable("private")}

    async def _call_tool(self, message: McpMessage, caller: Caller, notify: Notify | None) -> Json:
        # Only listed tools can be called: a prefix or a missing role must not be a matter of guessing.
        known = self._tools.listed(caller)
        name = message.params.get("name")
        tool = known.names.get(name) if type(name) is str else None
        token = message.meta.get("progressToken")
        # Clients correlate progress by their own token; without one they could not.
        progress = None if notify is None or token is None else EngineProgress(token, notify)
        call = ToolCall(caller, progress, extended=_declares_extension(message), links=message.version >= LINKS_SINCE)
        try:
            if tool is None:
                raise UnknownTool
            return await self._tools.call(tool, message.params.get("arguments"), call)
        except UnknownTool:
            listed = ", ".join(known.names)
            raise McpError(INVALID_PARAMS, f"there is no tool {str(name)[:100]!r}; there are {listed}") from None
        except ExtensionNeeded:
            text = f"raw results are for clients that declare the extension {EXTENSION}"
            if not message.modern:
                # Earlier requests cannot declare it, and several of their clients fail on a protocol error.
                return {"content": [{"type": "text", "text": f"{text}. Leave 'raw' out."}], "isError": True}
            data: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise McpError(EXTENSION_NEEDED, text, data) from None

    def _info(self, title: str) -> Json:
        return {"name": self._name, "title": title, "version": self._version}

    def _stamped(self, message: McpMessage, result: Json, caller: Caller) -> Json:
        """The result with what each result of its revision has."""
        if not message.modern:
            return result
        # Clients of this revision have seen no `initialize`, so each result says who answers.
        meta = {**result.get("_meta", {}), SERVER_KEY: self._info(self._tools.listed(caller).title)}
        return {"resultType": "complete", **result, "_meta": meta}

    def _shown(self, message: McpMessage) -> str:
        """The method as logs contain it."""
        return message.method if message.method in self._known else "other"

    def _record(self, message: McpMessage, caller: Caller, outcome: str, fault: McpError | None, took: float) -> Json:
        """Count a tool call; the log line of the message. `took` in seconds."""
        line: Json = {"request_id": caller.request_id}
        if caller.tenant is not None:
            line |= {"tenant": caller.tenant.id, "key": caller.key_id}
        line |= {"method": self._shown(message), "outcome": outcome}
        if message.method == "tools/call":
            name = message.params.get("name")
            tool = self._tools.listed(caller).names.get(name, "other") if type(name) is str else "other"
            line["tool"] = tool
            self._metrics.call(tool, outcome)
        return {**line, "code": None if fault is None else fault.code, "ms": round(took * 1000, 2)}

    def __repr__(self) -> str:
        return f"<McpServer {self._name} {self._version}, {self._tools!r}, {self._in_flight!r}>"


class EngineProgress:
    """Progress of a tool call: one notification for each engine that answered. Satisfies ProgressListener."""

    __slots__ = ("_answered", "_notify", "_token")

    ready = False  # lists of hits are not for MCP clients, so none is made

    def __init__(self, token: Any, notify: Notify) -> None:
        self._token = token
        self._notify = notify
        self._answered = 0

    def open(self) -> None:
        """Nothing is sent before an engine has answered."""

    def send(self, progress: Mapping[str, Any]) -> None:
        """RCP's own progress contains hits and is not passed on."""

    def log(self, line: Mapping[str, Any]) -> None:
        """One engine call has ended. The result lists engines that failed."""
        if line["data"]["status"] == "ok":
            self._answered += 1
            params = {"progressToken": self._token, "progress": self._answered, "message": line["message"]}
            self._notify(envelope.encode_notification("notifications/progress", params))

    def __repr__(self) -> str:
        return f"<EngineProgress {self._answered} engines answered>"


def _check_described(message: McpMessage) -> None:
    """Raises McpError for a request that lacks what each request since 2026-07-28 has."""
    meta = message.meta
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise McpError(INVALID_PARAMS, f"'params._meta' lacks {' and '.join(missing)}")
    version = meta[VERSION_KEY]
    if type(version) is not str:
        raise McpError(INVALID_PARAMS, f"'params._meta.{VERSION_KEY}' must be a string")
    if version != MODERN:
        raise unsupported(version)
    if type(meta[CAPABILITIES_KEY]) is not dict:
        raise McpError(INVALID_PARAMS, f"'params._meta.{CAPABILITIES_KEY}' must be an object")


def _declares_extension(message: McpMessage) -> bool:
    """Whether this request declares our extension; before 2026-07-28 requests do not describe their client."""
    capabilities = message.meta.get(CAPABILITIES_KEY) if message.modern else None
    extensions = capabilities.get("extensions") if type(capabilities) is dict else None
    return type(extensions) is dict and EXTENSION in extensions


def _check_one_page(message: McpMessage) -> None:
    if message.params.get("cursor") is not None:
        raise McpError(INVALID_PARAMS, "this cursor is unknown: the list has one page")


def _scope(caller: Caller) -> str:
    """Who may share a cached list: everybody, unless it depends on the tenant."""
    return "public" if caller.tenant is None else "private"


def _cacheable(scope: str) -> Json:
    return {"ttlMs": FRESH_MS, "cacheScope": scope}
