"""Checks of messages: ids, notifications, batches, and input that is not a message (RCP §4, §5, §11).

They use only `ping`, which every server has.
"""

import json
from itertools import count
from typing import Any

from app.conformance.reply import Json, brief, parsed, same, told
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

IDS = (1, 0, -7, 2**53, 1.5, "1", "abc", "", "é 😀 \u2028", "x" * 1000)

suite = Suite()
_check = suite.check


@_check("framing.ids", "L0", "4.2")
async def ids(subject: Subject) -> None:
    """An id comes back as it was sent, in type and value: numbers of every kind, strings of every kind."""
    for message_id in IDS:
        (await subject.ask("ping", {}, id=message_id)).result(f"a ping with the id {brief(message_id)}")


@_check("framing.null-id", "L0", "4.2", rule="MUST, tolerated")
async def null_id(subject: Subject) -> None:
    """An id that is null is no id: -32600."""
    await _refused(subject, {**_ping(_fresh()), "id": None})


@_check("framing.bad-id", "L0", "4.2", rule="MUST, tolerated")
async def bad_id(subject: Subject) -> None:
    """An id that is an object, a list or a boolean is -32600."""
    for message_id in ({"a": 1}, [1], True):
        await _refused(subject, _ping(message_id))


@_check("framing.version", "L0", "4.1", rule="MUST, tolerated")
async def version(subject: Subject) -> None:
    """A message whose `jsonrpc` is not "2.0" is -32600."""
    await _refused(subject, {**_ping(_fresh()), "jsonrpc": "1.0"})


@_check("framing.no-method", "L0", "4.1")
async def no_method(subject: Subject) -> None:
    """A request without a method, or with one that is no string, is -32600."""
    for message in ({"jsonrpc": "2.0", "id": _fresh()}, {"jsonrpc": "2.0", "id": _fresh(), "method": 7}):
        error = (await subject.send(message)).error(f"the message {brief(message)}")
        if error["code"] != INVALID_REQUEST:
            raise Departure(f"{brief(message)} was refused with {told(error)} instead of {INVALID_REQUEST}")


@_check("framing.positional", "L0", "4.3", rule="MUST, tolerated")
async def positional(subject: Subject) -> None:
    """Params are an object; a list is refused."""
    response = (await subject.send({**_ping(_fresh()), "params": [1]})).response()
    if "result" in response:
        raise Tolerated("params that are a list were taken as if there were none; -32600 or -32602 is wanted")


@_check("framing.unknown-fields", "L0", "4.4")
async def unknown_fields(subject: Subject) -> None:
    """Fields that nobody knows are ignored, in the message, in the params and in `_meta`."""
    message = _ping(_fresh(), {"x-unknown": {"a": [1]}, "_meta": {"x-unknown": 1, "trace": None}})
    (await subject.send({**message, "x-unknown": "y"})).result("a ping with unknown fields")


@_check("framing.no-json", "L0", "5.2")
async def no_json(subject: Subject) -> None:
    """What is no JSON is -32700; over HTTP with status 400."""
    reply = await subject.send(b'{"jsonrpc": "2.0", "id": 1,')
    error = reply.error("half a message")
    if error["code"] != PARSE_ERROR:
        raise Departure(f"half a message was refused with {told(error)} instead of {PARSE_ERROR}")
    if reply.status not in (None, 400):
        raise Tolerated(f"half a message was answered with HTTP {reply.status} instead of 400")


@_check("framing.status", "L0", "5.2", over="http")
async def status(subject: Subject) -> None:
    """Every well-formed response has HTTP status 200, and an error no less."""
    for method in ("ping", "no/such-method"):
        reply = await subject.ask(method, {})
        if reply.status != 200:
            raise Departure(f"{method} was answered with HTTP {reply.status}; a JSON-RPC response is 200, errors too")


@_check("framing.content-type", "L0", "5.2", over="http")
async def content_type(subject: Subject) -> None:
    """A response is `application/json`."""
    found = (await subject.ask("ping", {})).headers.get("content-type", "")
    if not found.startswith("application/json"):
        raise Departure(f"the response is said to be {brief(found)}")


@_check("framing.path", "L0", "5.2", over="http", rule="MUST, tolerated")
async def path(subject: Subject) -> None:
    """The method in the path and the one in the body must agree, else -32600."""
    reply = await subject.send(_ping(_fresh()), "info")
    if "result" in reply.response():
        raise Tolerated("the path said info and the body ping, and ping was answered; -32600 is wanted")
    error = reply.error("a ping at the path of info")
    if error["code"] != INVALID_REQUEST:
        raise Departure(f"a ping at the path of info was refused with {told(error)} instead of {INVALID_REQUEST}")


@_check("framing.compact", "L0", "5.2", over="http", rule="MAY")
async def compact(subject: Subject) -> None:
    """A message without `jsonrpc` and `id` may be accepted, and is then answered with the id null."""
    reply = await subject.send({"method": "ping", "params": {"nonce": "n"}})
    if not reply.body.strip() or reply.status != 200:
        raise Skipped("the compact envelope is not accepted, as a server may choose")
    response = reply.response()
    if response["id"] is not None:
        raise Departure(f"the compact envelope has no id, and the response has {brief(response['id'])}")
    if "error" in response:
        raise Skipped("the compact envelope is refused, as a server may choose")


@_check("framing.notification", "L0", "4.5")
async def notification(subject: Subject) -> None:
    """A message without an id is never answered, whatever its method."""
    for method in ("ping", "info", "no/such-method", "retrieve"):
        await _silent(subject, {"jsonrpc": "2.0", "method": method, "params": {"nonce": "n"}})


@_check("framing.unknown-notification", "L0", "4.5")
async def unknown_notification(subject: Subject) -> None:
    """A notification that nobody knows is dropped."""
    await _silent(subject, {"jsonrpc": "2.0", "method": "notifications/no-such-thing", "params": {}})


@_check("framing.cancel-unknown", "L0", "7.14")
async def cancel_unknown(subject: Subject) -> None:
    """A cancel for a request that there is not is ignored."""
    await _silent(subject, {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": "no-such-request"}})


@_check("framing.cancel-with-id", "L0", "7.14")
async def cancel_with_id(subject: Subject) -> None:
    """A cancel is a notification; with an id it is -32600."""
    await subject.refusal("notifications/cancel", {"id": 1}, INVALID_REQUEST)


@_check("batch.answers", "L0", "11")
async def batch(subject: Subject) -> None:
    """A batch is answered by a list with one response for each request, in any order."""
    found = await _batch(subject, [_ping("one"), _ping(2), {"jsonrpc": "2.0", "method": "ping"}, _ping(3.5)])
    missing = [sent for sent in ("one", 2, 3.5) if not any(same(response.get("id"), sent) for response in found)]
    if missing or len(found) != 3:
        raise Departure(f"a batch of three requests got {len(found)} responses; without one: {brief(missing)}")


@_check("batch.empty", "L0", "11")
async def empty(subject: Subject) -> None:
    """An empty batch is one -32600 with the id null, and no list."""
    reply = await subject.send([])
    error = reply.error("an empty batch")
    if error["code"] != INVALID_REQUEST or reply.response()["id"] is not None:
        raise Departure(f"an empty batch got {brief(reply.value())} instead of {INVALID_REQUEST} with the id null")


@_check("batch.notifications", "L0", "11")
async def only_notifications(subject: Subject) -> None:
    """A batch of nothing but notifications is not answered at all."""
    said = await subject.peer.tell(json.dumps([{"jsonrpc": "2.0", "method": "ping"}] * 2).encode(), "ping")
    if said.body.strip():
        raise Departure(f"a batch of notifications was answered: {brief(said.body[:80].decode('utf-8', 'replace'))}")


@_check("batch.malformed", "L0", "11")
async def malformed(subject: Subject) -> None:
    """A member that is no request gets -32600, and the others are answered all the same."""
    found = await _batch(subject, [7, _ping("good"), {"foo": "bar"}])
    codes = [response["error"].get("code") for response in found if isinstance(response.get("error"), dict)]
    if not any(response.get("id") == "good" and "result" in response for response in found):
        raise Departure(f"beside malformed members a good one was not answered: {brief(found)}")
    if codes != [INVALID_REQUEST] * 2:
        raise Departure(f"two malformed members must get {INVALID_REQUEST} each, and got {brief(codes)}")


async def _batch(subject: Subject, messages: list[Any]) -> list[Json]:
    reply = await subject.send(messages)
    found = reply.value()
    if isinstance(found, dict) and "error" in found:
        raise Departure(f"a batch was refused: {told(found['error'])}")
    if not isinstance(found, list) or not all(isinstance(response, dict) for response in found):
        raise Departure(f"a batch is answered by a list of responses, and this one was by {brief(found)}")
    return found


async def _silent(subject: Subject, message: Json) -> None:
    reply = await subject.tell(message)
    if reply.body.strip():
        raise Departure(f"the notification '{message['method']}' was answered: {brief(parsed(reply.body))}")
    if reply.status not in (None, 204):
        raise Departure(f"the notification '{message['method']}' was answered with HTTP {reply.status}, not 204")


async def _refused(subject: Subject, message: Json) -> None:
    reply = await subject.send(message)
    response = reply.response() if reply.body.strip() else {"result": None}
    if "result" in response:
        raise Tolerated(f"{brief(message)} was not refused; {INVALID_REQUEST} is wanted")
    error = reply.error(f"the message {brief(message)}")
    if error["code"] != INVALID_REQUEST:
        raise Departure(f"{brief(message)} was refused with {told(error)} instead of {INVALID_REQUEST}")


def _ping(message_id: Any, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": message_id, "method": "ping", "params": params or {}}


_numbers = count(1)


def _fresh() -> str:
    """An id that no other message has: a late reply to one must not pass for the answer to another."""
    return f"framing-{next(_numbers)}"
