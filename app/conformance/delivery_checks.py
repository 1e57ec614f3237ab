"""Checks of the delivery of a response: pages, and progress events (RCP §9, §10, §17).

Over stdio progress arrives as lines before the response, over HTTP as events.
"""

from typing import Any

from app.conformance.reply import Json, ServerReply, brief, is_number, same
from app.conformance.subject import Subject, ids_of
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

NOT_FOUND = -32015
INVALID_PARAMS = -32602
PAGES = 8
"""As many pages are turned, of SIZE hits each."""
SIZE = 3

suite = Suite()
_check = suite.check


@_check("pages.no-repeats", "L2", "10", "retrieve", "pagination")
async def no_repeats(subject: Subject) -> None:
    """No hit and no cursor comes twice while pages are turned."""
    seen: list[str] = []
    cursors: list[str] = []
    async for page in _pages(subject):
        repeated = [hit_id for hit_id in map(brief, ids_of(page)) if hit_id in seen]
        if repeated:
            raise Departure(f"the hit {repeated[0]} came on two pages")
        seen += map(brief, ids_of(page))
        cursor = page.get("nextCursor")
        if cursor in cursors:
            raise Departure("a cursor came back after it had been used")
        cursors.append(cursor)
    if len(cursors) == 1:
        raise Skipped(f"the question '{subject.wishes.query}' has one page only; give one that has more with --query")


@_check("pages.no-gaps", "L2", "10", "retrieve", "pagination", rule="SHOULD")
async def no_gaps(subject: Subject) -> None:
    """Two small pages are the same hits as one of their size together."""
    whole = await subject.settled(2 * SIZE)
    first = await subject.retrieve(k=SIZE)
    cursor = first.get("nextCursor")
    if len(whole) <= SIZE:
        raise Skipped(f"the question '{subject.wishes.query}' has one page only; give one that has more with --query")
    if not isinstance(cursor, str):
        raise Departure(f"there are more than {SIZE} hits, and the first page of {SIZE} has no nextCursor")
    found = ids_of(first) + ids_of(await subject.retrieve(k=SIZE, cursor=cursor))
    if found != whole:
        raise Departure(f"two pages hold {brief(found)}, one page of their size {brief(whole)}")


@_check("pages.altered-cursor", "L2", "10", "retrieve", "pagination")
async def altered_cursor(subject: Subject) -> None:
    """A cursor that the server did not give out is -32015."""
    cursor = (await subject.retrieve(k=1)).get("nextCursor")
    altered = [f"{cursor[:-1]}{'A' if cursor[-1] != 'A' else 'B'}~"] if isinstance(cursor, str) and cursor else []
    for made_up in (*altered, "no-such-cursor"):
        params = {"query": subject.wishes.query, "k": 1, "cursor": made_up}
        error = await subject.refusal("retrieve", params, NOT_FOUND, INVALID_PARAMS)
        if error["code"] != NOT_FOUND:
            raise Tolerated(f"a made-up cursor was refused with {error['code']}; {NOT_FOUND} is wanted")


@_check("stream.progress", "L2", "9", "retrieve", "streaming")
async def progress(subject: Subject) -> None:
    """Progress bears the token that was sent, string or number, and lies in [0,1]; the response comes once, last."""
    told = 0
    for token in ("token-1", 7):
        reply = await _streamed(subject, token)
        reply.result("retrieve with a progressToken")
        if reply.frames not in (None, 1):
            raise Departure(f"the stream holds {reply.frames} responses")
        for params in _progress(reply):
            told += 1
            if not same(params.get("progressToken"), token):
                raise Departure(f"the token {brief(token)} came back as {brief(params.get('progressToken'))}")
            if not is_number(params.get("progress")) or not 0 <= params["progress"] <= 1:
                raise Departure(f"progress lies in [0,1], and is {brief(params.get('progress'))}")
    if not told:
        raise Skipped("the server told no progress, as it may; nothing is proved of its streaming")


@_check("stream.same-answer", "L2", "9", "retrieve", "streaming", rule="SHOULD")
async def same_answer(subject: Subject) -> None:
    """The response at the end of a stream holds the same hits as a plain one."""
    expected = await subject.settled(SIZE)
    reply = await _streamed(subject, "token-2")
    found = [hit.get("id") for hit in reply.result("retrieve with a progressToken").get("hits", [])]
    if found != expected:
        raise Departure(f"the stream ended in the hits {brief(found)}, the plain answer has {brief(expected)}")


@_check("stream.unasked", "L0", "9", "retrieve")
async def unasked(subject: Subject) -> None:
    """Without a token no progress is told, and without `Accept: text/event-stream` no stream is sent."""
    asked = {"query": subject.wishes.query, "k": 1}
    if _progress(await subject.ask("retrieve", asked, events=True)):
        raise Departure("progress was told to a request without a progressToken")
    reply = await subject.ask("retrieve", {**asked, "_meta": {"progressToken": "t"}})
    if reply.frames is not None:
        raise Departure("a stream was sent to a client that does not accept text/event-stream")


@_check("stream.refusal", "L2", "9", "retrieve", "streaming", rule="MUST, tolerated")
async def refusal(subject: Subject) -> None:
    """A request that is refused is refused to a client that accepts streams as well."""
    params = {"query": subject.wishes.query, "k": 0, "_meta": {"progressToken": "t"}}
    reply = await subject.ask("retrieve", params, events=True)
    if "error" not in reply.response():
        raise Tolerated("k 0 is refused in a plain answer, and served in a stream")


@_check("log.unasked", "L0", "17")
async def log_unasked(subject: Subject) -> None:
    """`notifications/log` comes only from a server that advertises it."""
    logged = any(message.get("method") == "notifications/log" for message in subject.peer.unasked())
    if logged and not subject.offers("log"):
        raise Departure("notifications/log came, and log is not advertised")


async def _pages(subject: Subject) -> Any:
    page = await subject.retrieve(k=SIZE)
    yield page
    for _ in range(PAGES):
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return
        page = await subject.retrieve(k=SIZE, cursor=cursor)
        yield page


async def _streamed(subject: Subject, token: str | int) -> ServerReply:
    params: Json = {"query": subject.wishes.query, "k": SIZE, "_meta": {"progressToken": token}}
    return await subject.ask("retrieve", params, events=True)


def _progress(reply: ServerReply) -> list[Json]:
    """The params of each `notifications/progress` before a response."""
    found = [message for message in reply.notifications if message.get("method") == "notifications/progress"]
    return [message["params"] if isinstance(message.get("params"), dict) else {} for message in found]
