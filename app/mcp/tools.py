"""What the tools do: a question becomes a request of RCP, and its result what an MCP client is given.

Decides what a model is told where something goes wrong: an error of RCP is a result that says so, in words. It refuses
to know the SDK and HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.api.caller import Caller
from app.api.dispatch import Dispatcher
from app.api.gateway_state import GatewayState
from app.federation.progress import ProgressListener
from app.federation.result_set import BYTES_PER_TOKEN
from app.mcp import engine_list, tool_arguments, tool_definitions
from app.mcp.passages import cut, engines_of, passages_of, text_of, title_of, trust_of, uri_of
from app.mcp.rendering import quoted, sources
from app.protocol import envelope
from app.protocol.errors import RcpError

Json = dict[str, Any]

ERROR = "io.github.rcp-gateway/error"
"""The key in a result's `_meta` of the error as RCP has it."""

SEARCH_K = 10
"""How many results `search` gives; its one argument is the query."""


class UnknownTool(Exception):
    """There is no such tool."""


class ExtensionNeeded(Exception):
    """The client asks for what only a client may ask for that declares the extension."""


class Tools:
    """The tools of one gateway."""

    __slots__ = ("_dispatcher", "_state")

    def __init__(self, dispatcher: Dispatcher, state: GatewayState) -> None:
        self._dispatcher = dispatcher
        self._state = state

    async def call(
        self,
        name: str,
        said: Mapping[str, Any] | None,
        caller: Caller,
        listener: ProgressListener | None = None,
        *,
        extended: bool = False,
    ) -> Json:
        """The result of a `tools/call`. `extended`: the client declares our extension.

        Raises UnknownTool, ExtensionNeeded.
        """
        try:
            if name == "retrieve":
                return await self._retrieve(
                    tool_arguments.read(tool_arguments.RetrieveArguments, said), caller, listener, extended
                )
            if name == "search":
                return await self._search(tool_arguments.read(tool_arguments.SearchArguments, said), caller, listener)
            if name == "fetch":
                return await self._fetch(tool_arguments.read(tool_arguments.FetchArguments, said), caller)
            if name == "list_engines":
                tool_arguments.read(tool_arguments.ListEnginesArguments, said)
                return await self._list_engines(caller)
        except tool_arguments.BadArguments as fault:
            return failure(f"The arguments of {name} cannot be used: {fault}.")
        except RcpError as error:
            return _refusal(name, error)
        raise UnknownTool(name)

    async def capabilities(self, caller: Caller) -> Mapping[str, Any]:
        """The merged advertisement as this caller sees it. Raises RcpError."""
        described: Mapping[str, Any] = (await self._dispatcher.ask("info", {}, caller))["capabilities"]
        return described

    async def _retrieve(
        self, wish: tool_arguments.RetrieveArguments, caller: Caller, listener: ProgressListener | None, extended: bool
    ) -> Json:
        if wish.raw and not extended:
            raise ExtensionNeeded
        result = await self._ask(_params(wish), caller, listener)
        hits = result["hits"]
        if wish.raw:
            return success(result, f"The RCP result with {len(hits)} hits is in the structured content.")
        budget = self._state.settings.mcp.max_text_bytes
        if wish.token_budget is not None:
            budget = min(budget, wish.token_budget * BYTES_PER_TOKEN)
        passages = passages_of(hits, budget)
        report = result["_meta"]["x-gateway"]["engines"]
        structured = {"hits": passages, "engines": [_told(engine) for engine in report]}
        notes = result["usage"].get("notes", ())
        if notes:
            structured["notes"] = notes
        return success(structured, sources(passages, report, notes))

    async def _search(
        self, wish: tool_arguments.SearchArguments, caller: Caller, listener: ProgressListener | None
    ) -> Json:
        result = await self._ask({"query": wish.query, "k": SEARCH_K}, caller, listener)
        return _both(
            {
                "results": [
                    {"id": str(hit["id"]), "title": title_of(hit), "url": uri_of(hit) or ""} for hit in result["hits"]
                ]
            }
        )

    async def _fetch(self, wish: tool_arguments.FetchArguments, caller: Caller) -> Json:
        hit = await self._state.recent.find(caller.tenant, wish.id)
        if hit is None:
            return failure(
                f"There is no hit {wish.id[:200]!r} among those answered to you in the last "
                f"{self._state.settings.mcp.fetch_ttl_seconds} seconds. Search again and use an id of its results."
            )
        return _both(_document(hit, self._state.settings.mcp.max_fetch_bytes))

    async def _list_engines(self, caller: Caller) -> Json:
        entries = engine_list.listed((await self._dispatcher.ask("catalog/list", {}, caller))["engines"])
        return success({"engines": entries}, engine_list.lines(entries))

    async def _ask(self, params: Json, caller: Caller, listener: ProgressListener | None) -> Json:
        """The result of one `retrieve`, whose hits can be fetched from now on. Raises RcpError."""
        if listener is not None:
            params["_meta"] = {"logLevel": "debug"}
        result = await self._dispatcher.ask("retrieve", params, caller, listener)
        await self._state.recent.keep(caller.tenant, result["hits"])
        return result

    def __repr__(self) -> str:
        return f"<Toolbox {', '.join(tool_definitions.NAMES)}, {self._state.recent!r}>"


def success(structured: Mapping[str, Any], text: str) -> Json:
    """The result of a tool that did its work."""
    return {**_said(text), "structuredContent": structured}


def failure(text: str, meta: Json | None = None) -> Json:
    """The result of a tool that did not; the model reads why."""
    result: Json = {**_said(text), "isError": True}
    if meta is not None:
        result["_meta"] = meta
    return result


def _said(text: str) -> Json:
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


def _both(structured: Json) -> Json:
    """A result whose text is the same JSON, as research connectors read it; a JSON string is a quotation."""
    return success(structured, envelope.dumps(structured).decode())


def _params(wish: tool_arguments.RetrieveArguments) -> Json:
    params: Json = {"query": wish.query, "k": wish.k}
    if wish.mode is not None:
        params["mode"] = wish.mode
    if wish.filter is not None:
        params["filter"] = wish.filter
    if wish.engines is not None:
        params["x-gateway"] = {"engines": wish.engines}
    return params


def _told(engine: Mapping[str, Any]) -> Json:
    """What became of one engine, without what it says of it itself."""
    return {key: engine[key] for key in ("id", "status", "reason", "hits", "tookMs") if key in engine}


def _document(hit: Mapping[str, Any], most: int) -> Json:
    whole = text_of(hit).encode("utf-8", "replace")
    metadata: Json = {"engines": engines_of(hit), "trust": trust_of(hit), "score": hit["score"]}
    if len(whole) > most:
        metadata |= {"truncated": True, "textBytes": len(whole)}
    return {
        "id": str(hit["id"]),
        "title": title_of(hit),
        "text": cut(whole, most),
        "url": uri_of(hit) or "",
        "metadata": metadata,
    }


def _refusal(tool: str, error: RcpError) -> Json:
    """An error of RCP for a model. Engines' words may be in it, so they are quoted."""
    said: Sequence[str] = [error.message.replace("x-gateway.", ""), *error.data.get("notes", ())]
    wait = error.data.get("retryAfterMs")
    again = f" Try again after {wait} ms." if wait else " It may work later." if error.data.get("retryable") else ""
    return failure(
        f"{tool} failed with error {error.code}.{again}\n{quoted(chr(10).join(said))}", {ERROR: error.body()}
    )
