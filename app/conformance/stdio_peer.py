"""Stdio connection to the server under test: a child process, one line of JSON per message (RCP §5.1).

Responses are matched by id, so that a stray or late line is never taken for the response to another message.
"""

import asyncio
import codecs
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from app.conformance.peer import PeerGone
from app.conformance.reply import Json, ServerReply, same

MAX_LINE = 64 * 1024 * 1024
LAST_WORDS = 2_000
"""Bytes kept of what the process writes to stderr, to tell why it ended."""

DOUBT_SECONDS = 0.5
"""How long the right id is waited for, once a reply under another id has come and a later ping is answered."""

GRACE = 2.0
"""Seconds that a process has to end once its input has ended, before it is killed."""


class StdioPeer:
    """A server that `command` starts."""

    kind: Literal["http", "stdio"] = "stdio"

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.noise: list[str] = []
        """Lines on stdout that are no JSON-RPC."""
        self.marks = 0
        """Lines that begin with a byte order mark."""
        self.strays: list[Any] = []
        """Replies that answered nothing that was open."""
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._words = b""
        self._sentinels = 0
        self._notifications: list[Json] = []
        self._open: list[_Sent] = []
        """What has been sent last and is not answered yet."""

    async def send(self, body: bytes, method: str, events: bool = False) -> ServerReply:
        """Write the line, or several, and wait for the answer to one of them."""
        sent = list(_sent_in(body))
        if any(one.anonymous for one in sent):
            await self._drain()
        self._open = sent
        await self._write(body)
        return await self.next()

    async def next(self) -> ServerReply:
        """The next answer to what has been sent already. Raises PeerGone.

        A reply under another id may be a stray, or the answer itself with a wrong id. The latter is taken for granted
        once a ping that was sent after it is answered, and a moment later nothing better has come.
        """
        doubtful: list[Any] = []
        told: list[Json] = []
        sentinel = ""
        until: float | None = None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    message, before = await self._next()
            except TimeoutError:
                message, doubtful = doubtful[0], doubtful[1:]
                self.strays += doubtful
                return self._reply(message, told)
            told += before
            answered = next((sent for sent in self._open if sent.answered_by(message)), None)
            if answered is not None:
                self._open.remove(answered)
                self.strays += doubtful
                return self._reply(message, told)
            if sentinel and isinstance(message, dict) and message.get("id") == sentinel:
                until = asyncio.get_running_loop().time() + DOUBT_SECONDS
                continue
            doubtful.append(message)
            if not sentinel:
                sentinel = self._sentinel()
                await self._write(_ping(sentinel))

    async def _drain(self) -> None:
        """Read all that is still to come from before: a late reply without an id must not answer what is sent next."""
        sentinel = self._sentinel()
        await self._write(_ping(sentinel))
        while True:
            message, _ = await self._next()
            if isinstance(message, dict) and message.get("id") == sentinel:
                return
            self.strays.append(message)

    def _reply(self, message: Any, told: list[Json]) -> ServerReply:
        return ServerReply(json.dumps(message).encode(), notifications=tuple(told))

    def _sentinel(self) -> str:
        self._sentinels += 1
        return f"after-{self._sentinels}"

    async def tell(self, body: bytes, method: str) -> ServerReply:
        """Write the line and a ping behind it; whatever comes before the ping's answer was said to `body`."""
        await self._drain()
        sentinel = self._sentinel()
        await self._write(body + b"\n" + _ping(sentinel))
        said: list[Any] = []
        while True:
            message, _ = await self._next()
            if not isinstance(message, dict):
                said.append(message)
            elif message.get("id") == sentinel:
                return ServerReply(json.dumps(said[0] if len(said) == 1 else said).encode() if said else b"")
            elif message.get("id") is None:  # what had no id can only be answered without one
                said.append(message)
            else:
                self.strays.append(message)

    def join_session(self, token: str) -> None:
        """Nothing to do: the process is the session."""

    async def renew(self) -> bool:
        """End the process and start another one."""
        await self.close()
        await self._started()
        return True

    def unasked(self) -> list[Json]:
        """Notifications of this and earlier processes."""
        return self._notifications

    async def end_of_input(self) -> int | None:
        """Close the server's input; its exit code, or None if it is still there after the grace."""
        process = await self._started()
        assert process.stdin is not None
        process.stdin.close()
        return await self.ended()

    async def ended(self) -> int | None:
        """Its exit code once it has ended by itself, or None if it is still there after the grace."""
        process = await self._started()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                return await process.wait()
        return None

    async def close(self) -> None:
        """End the process with all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _started(self) -> Process:
        if self._process is None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=MAX_LINE, start_new_session=True
                )
            except OSError as fault:
                raise PeerGone(f"'{self.command[0]}' cannot be started: {fault.strerror}") from None
            self._words = b""
            self._listener = asyncio.create_task(self._listen(self._process), name="conformance-stderr")
        return self._process

    async def _listen(self, process: Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(4096):
            self._words = (self._words + piece)[-LAST_WORDS:]

    async def _write(self, line: bytes) -> None:
        process = await self._started()
        assert process.stdin is not None
        process.stdin.write(line + b"\n")
        with suppress(ConnectionError):  # the end of its output tells more
            await process.stdin.drain()

    async def _next(self) -> tuple[Any, list[Json]]:
        """The next message that is no notification, and the notifications before it."""
        process = await self._started()
        assert process.stdout is not None
        told: list[Json] = []
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                raise PeerGone(f"a line of its output is longer than {MAX_LINE} bytes") from None
            if not line:
                raise PeerGone(await self._end_told(process))
            message = self._read(line)
            if isinstance(message, dict) and "method" in message:
                told.append(message)
                self._notifications.append(message)
            elif message is not None:
                return message, told

    def _read(self, line: bytes) -> Any:
        """The message in a line, None if it is blank or noise."""
        if line.startswith(codecs.BOM_UTF8):
            self.marks += 1
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            return None
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict | list):
            self.noise.append(line[:200].decode("utf-8", "replace").strip())
            return None
        return message

    async def _end_told(self, process: Process) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()
                if self._listener is not None:
                    await asyncio.shield(self._listener)
        how = "closed its output" if process.returncode is None else f"ended with status {process.returncode}"
        last = self._words.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"the server {how}" + (f"; last output: {last}" if last else "")

    def __repr__(self) -> str:
        pid = "not running" if self._process is None else f"pid {self._process.pid}"
        return f"StdioPeer({self.command[0]}, {pid}, {len(self.noise)} lines of noise)"


class _Sent:
    """One line that was written and must be answered: a request, a batch, or something that is neither."""

    def __init__(self, message: Any) -> None:
        self._batch = isinstance(message, list)
        members = message if isinstance(message, list) else [message]
        self._ids = [member["id"] for member in members if isinstance(member, dict) and "id" in member]
        sound = [one for one in self._ids if type(one) in (str, int, float)]
        self.anonymous = self._batch or not sound
        """Whether the reply may have no id: nothing in the message had one that can be given back."""

    def answered_by(self, reply: Any) -> bool:
        """Whether `reply` can be the answer."""
        if isinstance(reply, list):
            return self._batch
        if reply.get("id") is None and self.anonymous:
            return True
        return any(same(reply.get("id"), one) for one in self._ids)

    def __repr__(self) -> str:
        return f"<_Sent {self._ids}>"


def _sent_in(body: bytes) -> Iterator[_Sent]:
    """What in these lines wants an answer; a line that is no JSON does, a notification does not."""
    for line in body.split(b"\n"):
        try:
            message = json.loads(line)
        except ValueError:
            message = line.strip() or None
        notification = isinstance(message, dict) and "id" not in message and "jsonrpc" in message
        if message is not None and not notification:
            yield _Sent(message)


def _ping(message_id: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "method": "ping", "params": {}}).encode()
