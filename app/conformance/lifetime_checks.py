"""Checks of a server as a child process: its lines, cancellation, and how it ends (RCP §5.1, §7.12).

They run last, because the process is gone after them. They are skipped for a server over HTTP.
"""

import json

from app.conformance.reply import Json, brief, same
from app.conformance.stdio_peer import GRACE, StdioPeer
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

suite = Suite()
_check = suite.check


@_check("stdio.blank-lines", "L0", "5.1", over="stdio")
async def blank_lines(subject: Subject) -> None:
    """Blank lines between messages are tolerated."""
    reply = await subject.send(
        b"\n \n" + json.dumps({"jsonrpc": "2.0", "id": "after-blank-lines", "method": "ping"}).encode()
    )
    reply.result("a ping after blank lines")


@_check("stdio.clean-output", "L0", "5.1", over="stdio")
async def clean_output(subject: Subject) -> None:
    """Nothing but messages stands on stdout, one a line, in UTF-8 without a byte order mark."""
    peer = _process(subject)
    if peer.marks:
        raise Departure(f"{peer.marks} lines on stdout begin with a byte order mark")
    if peer.noise:
        count, first = len(peer.noise), peer.noise[0]
        raise Departure(f"{count} lines on stdout are no messages; write those to stderr: {brief(first)}")


@_check("stdio.cancel", "L0", "7.14", "retrieve", over="stdio")
async def cancel(subject: Subject) -> None:
    """A request that is cancelled is still answered, and exactly once."""
    peer, message_id = _process(subject), "to-be-cancelled"
    params = {"query": subject.wishes.query, "k": 1}
    asked = {"jsonrpc": "2.0", "id": message_id, "method": "retrieve", "params": params}
    called_off = {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": message_id}}
    reply = await subject.send(json.dumps(asked).encode() + b"\n" + json.dumps(called_off).encode(), "retrieve")
    if not same(reply.response()["id"], message_id):
        raise Departure(f"a cancelled request was answered under another id: {brief(reply.value())}")
    await subject.tell({"jsonrpc": "2.0", "method": "notifications/no-such-thing"})
    if any(isinstance(stray, dict) and same(stray.get("id"), message_id) for stray in peer.strays):
        raise Departure("a cancelled request was answered twice")


@_check("stdio.one-reply", "L0", "4.7", over="stdio")
async def one_reply(subject: Subject) -> None:
    """Each request is answered once and under its own id, and nothing else is."""
    strays = _process(subject).strays
    if strays:
        raise Departure(f"{len(strays)} replies answer no request that was open, such as {brief(strays[0])}")


@_check("stdio.pipelined", "L0", "5.1", over="stdio")
async def pipelined(subject: Subject) -> None:
    """Requests that are sent without waiting are all answered, in any order."""
    peer = _process(subject)
    ids = [f"pipelined-{number}" for number in range(20)]
    lines = [json.dumps({"jsonrpc": "2.0", "id": message_id, "method": "ping"}).encode() for message_id in ids]
    replies = [await peer.send(b"\n".join(lines), "ping")]
    replies += [await peer.next() for _ in ids[1:]]
    found = sorted(str(reply.response()["id"]) for reply in replies)
    if found != sorted(ids):
        raise Departure(f"{len(ids)} pings were sent at once, and answered were {brief(found)}")


@_check("stdio.end-of-input", "L0", "5.1", over="stdio", rule="SHOULD")
async def end_of_input(subject: Subject) -> None:
    """When its input ends, the server ends by itself."""
    peer = _process(subject)
    await subject.result("ping", {})
    status = await peer.end_of_input()
    await peer.renew()
    _ended_well(status, "its input had ended")


@_check("stdio.shutdown", "L0", "7.12", over="stdio")
async def shutdown(subject: Subject) -> None:
    """`shutdown` is answered with an empty result."""
    result: Json = await subject.result("shutdown", {})
    if any(not key.startswith("_") for key in result):
        raise Departure(f"shutdown is answered with {{}}, and not with {brief(result)}")
    status = await _process(subject).ended()
    if status not in (None, 0):
        raise Tolerated(f"after shutdown the server ended with status {status} instead of 0")


def _ended_well(status: int | None, after: str) -> None:
    if status is None:
        raise Departure(f"the server was still there {GRACE:g} seconds after {after}")
    if status != 0:
        raise Departure(f"after {after} the server ended with status {status} instead of 0")


def _process(subject: Subject) -> StdioPeer:
    if not isinstance(subject.peer, StdioPeer):
        raise Skipped("the server is no child process")
    return subject.peer
