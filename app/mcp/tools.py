"""The tools: each call becomes a request of RCP through the dispatcher, and its result an MCP tool result.

An error of RCP becomes a result that explains it, because a model can act on that.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.federation.membership import Members
from app.federation.progress import ProgressListener
from app.federation.result_set import BYTES_PER_TOKEN
from app.federation.tenants import Tenant
from app.mcp import hit_ids, tool_arguments, tool_definitions
from app.mcp.rendering import (
    NOTICE,
    clean,
    cleaned,
    document_of,
    engine_entries,
    engine_lines,
    engines_of,
    hides,
    id_of,
    link_of,
    passages_of,
    quoted,
    sources,
    text_of,
    title_of,
    warnings_of,
)
from app.mcp.tool_definitions import ToolList, fields_of, tool_list
from app.protocol import envelope
from app.protocol.errors import InvalidParams, NotFound, RcpError
from app.settings.mcp import McpSettings

Json = dict[str, Any]

ERROR: Final = "io.github.rcp-gateway/error"
"""The key in a result's `_meta` of the error as RCP has it."""

SEARCH_K: Final = 10
"""How many results `search` returns; its one argument is the query."""

AGAIN_K: Final = (20, 100)
"""`k` of the requests that find a hit again. Most hits are among the first 20, and every returned hit counts against
the caller's daily limit."""

MAX_VIEWS: Final = 1000
"""Cached tool lists, one for each tenant and set of roles; beyond it the oldest are evicted."""

MAX_LISTED: Final = 50
"""Engines or fields that an error lists."""


class UnknownTool(Exception):
    """There is no such tool."""


class ExtensionNeeded(Exception):
    """The client requests what only clients get that declare the extension."""


class ToolCall:
    """Who calls a tool, and what the client of the call can do."""

    __slots__ = ("caller", "extended", "links", "listener")

    def __init__(
        self, caller: Caller, listener: ProgressListener | None = None, *, extended: bool = False, links: bool = True
    ) -> None:
        """`extended`: the client declares our extension; `links`: it knows content of the type `resource_link`."""
        self.caller = caller
        self.listener = listener
        self.extended = extended
        self.links = links

    def __repr__(self) -> str:
        return f"<ToolCall of {self.caller.request_id}>"


Tool = Callable[[Any, ToolCall], Awaitable[Json]]


class Tools:
    """The tools of one gateway."""

    __slots__ = ("_dispatcher", "_state", "_tools", "_views")

    def __init__(self, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._dispatcher = dispatcher
        self._state = state
        self._tools: Mapping[str, Tool] = {
            "retrieve": self._retrieve,
            "list_engines": self._list_engines,
            "search": self._search,
            "fetch": self._fetch,
            "feedback": self._feedback,
        }
        self._views: dict[tuple[str, frozenset[str]] | None, tuple[Members, McpSettings, Tenant | None, ToolList]] = {}

    def listed(self, caller: Caller) -> ToolList:
        """The tools as this caller sees them; the same object until engines, settings or the tenant change."""
        tenant = caller.tenant
        members = self._state.membership.current(tenant)
        settings = self._state.settings.mcp
        key = None if tenant is None else (tenant.id, tenant.roles)
        view = self._views.get(key)
        # Engines, settings and tenants are replaced and never changed, so identity is enough.
        if view is not None and view[0] is members and view[1] is settings and view[2] is tenant:
            return view[3]
        title, about, prefix = settings.title, settings.about, settings.tool_prefix
        if tenant is not None:
            own = tenant.mcp
            title = title if own.title is None else own.title
            about = about if own.about is None else own.about
            prefix = prefix if own.tool_prefix is None else own.tool_prefix
        feedback = "feedback" in members.capabilities and (tenant is None or tenant.may_use("feedback"))
        tools = tool_list(title, about, prefix, members.offers, feedback=feedback, structured=settings.result != "text")
        # Inserted again, so that the oldest view is first in the dict.
        self._views.pop(key, None)
        self._views[key] = (members, settings, tenant, tools)
        if len(self._views) > MAX_VIEWS:
            del self._views[next(iter(self._views))]
        return tools

    async def call(self, name: str, arguments: Any, call: ToolCall) -> Json:
        """The result of a `tools/call`; `name` is without prefix. Raises UnknownTool, ExtensionNeeded."""
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(name)
        try:
            return await tool(arguments, call)
        except tool_arguments.BadArguments as fault:
            return failure(f"The arguments of {name} cannot be used: {fault}.")
        except RcpError as error:
            return self._refusal(name, error, call.caller)

    async def read_resource(self, uri: str, caller: Caller) -> Json:
        """The contents of a resource link: the text of a hit. Raises RcpError."""
        hit = await self._found(uri, caller) if uri.startswith(hit_ids.URI) else None
        if hit is None:
            raise NotFound(
                "there is no such resource, or its engine does not return it any more", uri=clean(uri[:2048])
            )
        document = document_of(hit, uri, self._state.settings.mcp.max_fetch_bytes)
        # Quoted, since a host may paste the contents into a conversation.
        text = f"{NOTICE}\n\n" + quoted(f"**{document['title']}**\n\n{document['text']}")
        return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text}]}

    async def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        """The merged advertisement as this caller sees it. Raises RcpError."""
        described: Mapping[str, Any] = (await self._dispatcher.ask("info", {}, caller))["capabilities"]
        return described

    async def _retrieve(self, arguments: Any, call: ToolCall) -> Json:
        args = tool_arguments.read(tool_arguments.RetrieveArguments, arguments)
        if args.raw and not call.extended:
            raise ExtensionNeeded
        params = _params(args)
        # A session of its own lets `feedback` name this answer. Without the tool nothing is remembered.
        answer = self._answer_id(args, params, call.caller)
        result = await self._ask(params, call)
        hits = result["hits"]
        if args.raw:
            return success(result, f"The RCP result with {len(hits)} hits is in the structured content.")
        settings = self._state.settings.mcp
        # Not RCP's `tokenBudget`, which leaves hits out: eight beginnings are worth more to a model than two texts.
        budget = settings.max_text_bytes
        if args.token_budget is not None:
            budget = min(budget, args.token_budget * BYTES_PER_TOKEN)
        passages = passages_of(hits, budget)
        report = result["_meta"]["x-gateway"]["engines"]
        notes = [clean(note) for note in result["usage"].get("notes", ())]
        structured: Json = {"notice": NOTICE, "hits": passages, "engines": [_status(engine) for engine in report]}
        if notes:
            structured["notes"] = notes
        more = ""
        if "nextCursor" in result:
            cursor = result["nextCursor"] if answer is None else f"{answer}.{result['nextCursor']}"
            structured["nextCursor"] = cursor
            more = f"More: repeat the call with cursor {cursor}."
        if answer is not None:
            structured["answer"] = answer
            more += f"{' ' if more else ''}Name of this answer for feedback: {answer}."
        links = _links(hits, passages, params) if call.links else ()
        return self._result(structured, sources(passages, report, notes, more), links)

    def _answer_id(self, args: tool_arguments.RetrieveArguments, params: Json, caller: Caller) -> str | None:
        """Put the cursor and the session into `params`; the name of the answer for `feedback`, if the caller has it."""
        # A cursor belongs to the session of its first page, so the session is part of the cursor that clients get.
        answer, cursor = None, args.cursor
        if cursor is not None and "." in cursor:
            answer, _, cursor = cursor.partition(".")
        elif cursor is None and "feedback" in self.listed(caller).names.values():
            answer = token_hex(8)
        if cursor is not None:
            params["cursor"] = cursor
        if answer is not None:
            params["sessionId"] = answer
        return answer

    async def _search(self, arguments: Any, call: ToolCall) -> Json:
        args = tool_arguments.read(tool_arguments.SearchArguments, arguments)
        hits = (await self._ask({"query": args.query, "k": SEARCH_K}, call))["hits"]
        return self._json({"notice": NOTICE, "results": [_search_result(hit, args.query) for hit in hits]})

    async def _fetch(self, arguments: Any, call: ToolCall) -> Json:
        args = tool_arguments.read(tool_arguments.FetchArguments, arguments)
        hit = await self._found(args.id, call.caller)
        if hit is None:
            return failure(
                f"The hit {clean(args.id[:200])!r} cannot be fetched: it is no id of a search result, or its engine "
                "does not return it any more. Search again and use an id of the results."
            )
        return self._json(document_of(hit, clean(args.id), self._state.settings.mcp.max_fetch_bytes))

    async def _found(self, written: str, caller: Caller) -> Mapping[str, Any] | None:
        """The hit of this id: as it was last returned to the tenant, else as its engine returns it now; None if neither
        is possible. Raises RcpError if the engine does not answer."""
        reference = hit_ids.decode(written)
        if reference is None:
            return await self._state.recent.find(caller.tenant, written)
        # Engines may use the same id for different documents.
        kept = await self._state.recent.find(caller.tenant, reference.hit_id)
        if kept is not None and reference.engine in engines_of(kept):
            return kept
        for k in AGAIN_K:
            try:
                # The caller's own request: engines that it does not see are unknown to it here, too.
                hits = (await self._dispatcher.ask("retrieve", {**reference.params, "k": k}, caller))["hits"]
            except InvalidParams:
                return None
            found = next((hit for hit in hits if id_of(hit) == reference.hit_id), None)
            if found is not None or len(hits) < k:
                return found
        return None

    async def _list_engines(self, arguments: Any, call: ToolCall) -> Json:
        tool_arguments.read(tool_arguments.ListEnginesArguments, arguments)
        entries = engine_entries((await self._dispatcher.ask("catalog/list", {}, call.caller))["engines"])
        return self._result({"notice": NOTICE, "engines": entries}, engine_lines(entries))

    async def _feedback(self, arguments: Any, call: ToolCall) -> Json:
        args = tool_arguments.read(tool_arguments.FeedbackArguments, arguments)
        flags = {
            "used": args.used,
            "cited": args.cited,
            "helpful": args.helpful,
            "poisonSuspected": args.poison_suspected,
        }
        # What is not said is not sent: `false` is a judgement, too.
        given = {name: flag for name, flag in flags.items() if flag is not None}
        if not given:
            raise tool_arguments.BadArguments("one of 'used', 'cited', 'helpful', 'poison_suspected' is needed")
        ids = [reference.hit_id if (reference := hit_ids.decode(each)) else each for each in args.ids]
        params = {"sessionId": args.answer, "signals": [{"hitId": hit_id, **given} for hit_id in ids]}
        result = await self._dispatcher.ask("feedback", params, call.caller)
        structured: Json = {"notice": NOTICE, "accepted": result["accepted"]}
        notes = cleaned(list((result.get("usage") or {}).get("notes", ())))
        if notes:
            structured["notes"] = notes
        text = f"{result['accepted']} of {len(ids)} signals accepted."
        return self._result(structured, text + (f"\n{quoted(chr(10).join(notes))}" if notes else ""))

    async def _ask(self, params: Json, call: ToolCall) -> Json:
        """The result of one `retrieve`, whose hits are kept for `fetch`. Raises RcpError."""
        if call.listener is not None:
            # Progress of MCP is one line per engine, which is RCP's log.
            params["_meta"] = {"logLevel": "debug"}
        result = await self._dispatcher.ask("retrieve", params, call.caller, call.listener)
        # Kept under the id that the model reads.
        await self._state.recent.keep(call.caller.tenant, {id_of(hit): hit for hit in result["hits"]})
        return result

    def _result(self, structured: Json, text: str, links: Sequence[Json] = ()) -> Json:
        """A result in the form of `mcp.result`."""
        form = self._state.settings.mcp.result
        content = [*links] if form == "structured" else [{"type": "text", "text": text}, *links]
        return {"content": content} if form == "text" else {"content": content, "structuredContent": structured}

    def _json(self, structured: Json) -> Json:
        """A result whose text is the same JSON, as research connectors read it. A JSON string is a quotation."""
        return self._result(structured, envelope.dumps(structured).decode())

    def _refusal(self, tool: str, error: RcpError, caller: Caller) -> Json:
        """An error of RCP for a model. It may contain engines' words, so it is quoted."""
        lines: Sequence[str] = [error.message.replace("x-gateway.", ""), *error.data.get("notes", ())]
        wait = error.data.get("retryAfterMs")
        again = f" Try again after {wait} ms." if wait else " It may work later." if error.data.get("retryable") else ""
        hint = self._available(error, caller)
        text = f"{tool} failed with error {error.code}.{again}\n{quoted(chr(10).join(lines))}"
        return failure(f"{text}\n{hint}" if hint else text, {ERROR: cleaned(error.body())})

    def _available(self, error: RcpError, caller: Caller) -> str:
        """What exists, for an error about an unknown engine or filter field; empty for others."""
        field = str(error.data.get("field", ""))
        offers = self._state.membership.current(caller.tenant).offers
        if field == "x-gateway.engines":
            return _available("Engines", [offer.id for offer in offers])
        if field.startswith("filter"):
            known = [offer.advertisement.filter_fields for offer in offers if offer.advertisement is not None]
            names = dict.fromkeys(name for fields in known for name in fields_of(fields))
            return _available("Filter fields", list(names))
        return ""

    def __repr__(self) -> str:
        return f"<Tools {', '.join(tool_definitions.NAMES)}, {self._state.recent!r}>"


def success(structured: Mapping[str, Any], text: str) -> Json:
    """The result of a tool that did its work."""
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def failure(text: str, meta: Json | None = None) -> Json:
    """The result of a tool that did not; the model reads why."""
    result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
    if meta is not None:
        result["_meta"] = meta
    return result


def _params(args: tool_arguments.RetrieveArguments) -> Json:
    params: Json = {"query": args.query, "k": args.k}
    if args.mode is not None:
        params["mode"] = args.mode
    if args.filter is not None:
        params["filter"] = args.filter
    if args.engines is not None:
        params["x-gateway"] = {"engines": args.engines}
    return params


def _search_result(hit: Mapping[str, Any], query: str) -> Json:
    # `url` is always there, because connectors require it.
    link = link_of(hit)
    text = text_of(hit)
    found: Json = {
        "id": _reference(hit, id_of(hit), query, {}),
        "title": title_of(hit, clean(text)),
        "url": link.get("uri", ""),
    }
    if "source" in link:
        found["source"] = link["source"]
    if "injectionSuspected" in warnings_of(hit, hidden=hides(text)):
        found["injectionSuspected"] = True
    return found


def _reference(hit: Mapping[str, Any], hit_id: str, query: str, scope: Mapping[str, Any]) -> str:
    engines = engines_of(hit)
    return hit_ids.encode(engines[0], hit_id, query, scope) if engines else hit_id


def _links(hits: Sequence[Mapping[str, Any]], passages: Sequence[Json], params: Json) -> list[Json]:
    """A resource link for each hit, which a host can pin, cite and read."""
    return [
        {"type": "resource_link", "uri": hit_ids.URI + found, "name": passage["title"], "mimeType": "text/markdown"}
        for hit, passage in zip(hits, passages, strict=True)
        if (found := _reference(hit, passage["id"], params["query"], params)).startswith(hit_ids.PREFIX)
    ]


def _status(engine: Mapping[str, Any]) -> Json:
    """What became of one engine, without the engine's own words."""
    return {key: engine[key] for key in ("id", "status", "reason", "hits", "tookMs") if key in engine}


def _available(kind: str, names: Sequence[str]) -> str:
    if not names:
        return f"{kind} available to you: none."
    left = len(names) - MAX_LISTED
    return f"{kind} available to you: {', '.join(names[:MAX_LISTED])}{f' and {left} more' if left > 0 else ''}."
