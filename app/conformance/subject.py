"""The server under test as checks use it: requests in terms of RCP, and what was learnt about the server on the way.

It keeps the advertisement, whether a handshake is required, and the hits of a sample query.
"""

import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from app.conformance.peer import Peer
from app.conformance.reply import Json, ServerReply, brief, is_number, same, told
from app.conformance.verdict import Departure, Skipped

ABSENT: Any = object()
"""In place of params: leave the key out."""

HELLO: Json = {"protocolVersion": 1, "client": {"name": "rcp-gateway conformance", "version": "1"}, "capabilities": {}}


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How a server is to be examined."""

    query: str = "test"
    """A question to which it has answers, several if possible."""
    write: bool = False
    """Whether it may be written to."""


@dataclass(slots=True)
class Subject:
    """One server, asked one thing at a time."""

    peer: Peer
    wishes: QueryOptions = field(default_factory=QueryOptions)
    described: Json = field(default_factory=dict)
    """The result of `initialize`, or of `info` where somebody else has initialized the server before."""
    stateless: bool = False
    """Whether it answers without a handshake."""
    _ids: "count[int]" = field(default_factory=lambda: count(1))
    _sample: list[Json] | None = None

    @property
    def capabilities(self) -> Json:
        """What it advertises; empty before the handshake."""
        found = self.described.get("capabilities")
        return found if isinstance(found, dict) else {}

    @property
    def claimed(self) -> Any:
        """`_meta.conformance`, None if it claims nothing."""
        meta = self.described.get("_meta")
        return meta.get("conformance") if isinstance(meta, dict) else None

    def offers(self, capability: str) -> bool:
        """Whether it advertises `capability`: presence counts, null and false do not."""
        return self.capabilities.get(capability) not in (None, False)

    def offer(self, capability: str) -> Json:
        """The fields of an advertised capability."""
        found = self.capabilities.get(capability)
        return found if isinstance(found, dict) else {}

    def offered(self, capability: str, name: str) -> list[str]:
        """The strings that an advertised list holds; none where the field is no list."""
        found = self.offer(capability).get(name)
        return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []

    async def ask(self, method: str, params: Any = ABSENT, *, id: Any = ABSENT, events: bool = False) -> ServerReply:
        """The reply to one request. Raises PeerGone, and Departure if it bears another id."""
        message_id = next(self._ids) if id is ABSENT else id
        message: Json = {"jsonrpc": "2.0", "id": message_id, "method": method}
        if params is not ABSENT:
            message["params"] = params
        reply = await self.peer.send(json.dumps(message).encode(), method, events)
        found = reply.response()["id"]
        if not same(found, message_id):
            raise Departure(f"the request had the id {brief(message_id)}, the response {brief(found)}")
        return reply

    async def send(self, message: Any, method: str = "ping") -> ServerReply:
        """The reply to any message, JSON or bytes, sent as it is. Raises PeerGone."""
        return await self.peer.send(message if isinstance(message, bytes) else json.dumps(message).encode(), method)

    async def tell(self, message: Json) -> ServerReply:
        """What comes back for a message that must not be answered. Raises PeerGone."""
        return await self.peer.tell(json.dumps(message).encode(), message["method"])

    async def result(self, method: str, params: Json) -> Json:
        """The result of a request that must succeed. Raises Departure."""
        return (await self.ask(method, params)).result(f"{method} {brief(params)}")

    async def refusal(self, method: str, params: Any, *codes: int) -> Json:
        """The error of a request that must be refused with one of `codes`. Raises Departure."""
        what = f"{method} {brief(params)}"
        error = (await self.ask(method, params)).error(what)
        if error["code"] not in codes:
            wanted = " or ".join(map(str, codes))
            raise Departure(f"{what} was refused with {told(error)} instead of {wanted}")
        return error

    async def accepts(self, method: str, params: Json) -> bool:
        """Whether a request that may be refused was answered with a result."""
        return "result" in (await self.ask(method, params)).response()

    async def retrieve(self, **params: Any) -> Json:
        """The result of one `retrieve` that must succeed, its hits looked at. Raises Departure."""
        asked = {"query": self.wishes.query, **params}
        result = await self.result("retrieve", asked)
        found = result.get("hits")
        if not isinstance(found, list):
            raise Departure(f"the result of retrieve has no list 'hits': {brief(result)}")
        for hit in found:
            if not isinstance(hit, dict) or type(hit.get("id")) not in (str, int, float):
                raise Departure(f"a hit needs an 'id' that is a string or a number: {brief(hit)}")
            if not is_number(hit.get("score")):
                raise Departure(f"a hit needs a 'score' that is a number: {brief(hit)}")
        return result

    async def hits(self, least: int = 1) -> list[Json]:
        """At most ten hits of the sample question, asked once. Raises Moot if there are fewer than `least`."""
        if self._sample is None:
            self._sample = (await self.retrieve(k=10))["hits"]
        if len(self._sample) < least:
            raise Skipped(
                f"the question '{self.wishes.query}' has {len(self._sample)} hits and this needs {least}; "
                "give one that has more with --query"
            )
        return self._sample

    async def settled(self, k: int) -> list[Any]:
        """The ids of the sample question's first `k` hits, in order. Raises Moot if they differ from time to time."""
        one, other = [ids_of(await self.retrieve(k=k)) for _ in range(2)]
        if one != other:
            raise Skipped("the same question gives other hits each time, so that two answers cannot be compared")
        return one


def ids_of(result: Json) -> list[Any]:
    """The ids of a result's hits, in order."""
    return [hit["id"] for hit in result["hits"]]
