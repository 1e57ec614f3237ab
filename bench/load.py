"""The load: a fixed number of callers, each asking again as soon as it has its answer (a closed loop).

Decides what is asked and what counts as a good answer (200, the request's id, k hits, no engine dropped).
Raw asyncio connections and prebuilt requests, so that asking costs next to nothing. It refuses to know who answers.
"""

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from time import perf_counter
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
import uvloop

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
STREAM_END = b"0\r\n\r\n"
"""The last chunk of an event stream."""
VARIANTS = 64
"""Distinct questions, asked in turn."""


@dataclass(slots=True)
class Tally:
    """What became of one run: seconds per good answer, and the reasons for the others."""

    latencies: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def answered(self) -> int:
        return len(self.latencies) + self.faults.total()

    def add(self, other: "Tally") -> None:
        """Take in another run of the same target."""
        self.latencies += other.latencies
        self.faults += other.faults
        self.seconds += other.seconds

    def percentile_ms(self, share: float) -> float:
        """The latency in milliseconds that `share` (0 to 1) of the good answers did not exceed; 0 if there is none."""
        ordered = sorted(self.latencies)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000 if ordered else 0.0

    def summary(self) -> dict[str, Any]:
        """The run in JSON: requests per second, latency in milliseconds, errors by reason."""
        return {
            "requests": self.answered,
            "rps": round(self.answered / self.seconds, 1) if self.seconds else 0.0,
            "p50Ms": round(self.percentile_ms(0.50), 3),
            "p95Ms": round(self.percentile_ms(0.95), 3),
            "p99Ms": round(self.percentile_ms(0.99), 3),
            "errors": dict(self.faults),
        }


class Caller(asyncio.Protocol):
    """One caller on one keep-alive connection."""

    def __init__(self, crew: "Crew") -> None:
        self.crew = crew
        self.unread = b""
        self.parts: list[bytes] = []
        self.asked_id = -1
        self.asked_at = 0.0
        self.waiting = False
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"Caller(waiting={self.waiting}, id={self.asked_id}, unread={len(self.unread)})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry

    def ask(self) -> None:
        """Send the next question, or rest if all have been asked."""
        following = self.crew.next_question()
        self.waiting = following is not None
        if following is None:
            self.crew.rest()
        elif self.transport.is_closing():
            self._fault("connection closed")
        else:
            self.asked_id, request = following
            self.asked_at = perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.crew.received += len(data)
        self.unread = data = self.unread + data if self.unread else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        declared = CONTENT_LENGTH.search(data, 0, end)
        if declared is None:
            self._fault("answer without Content-Length")
            self.transport.abort()
        elif len(data) >= end + 4 + int(declared[1]):
            self.unread = b""
            self._answered(data[:12], data[end + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting:
            self._fault("connection lost")

    def _answered(self, status: bytes, body: bytes) -> None:
        fault = self.crew.fault_of(status, body, self.asked_id)
        if fault is None:
            self.crew.tally.latencies.append(perf_counter() - self.asked_at)
        else:
            self.crew.tally.faults[fault] += 1
        self.ask()

    def _fault(self, reason: str) -> None:
        self.waiting = False
        self.crew.tally.faults[reason] += 1
        self.crew.rest()


class StreamCaller(Caller):
    """Reads an answer that is an event stream in chunks; its last event is the response."""

    def data_received(self, data: bytes) -> None:
        self.crew.received += len(data)
        self.parts.append(data)
        if data.endswith(STREAM_END):
            answer = b"".join(self.parts)
            self.parts.clear()
            start = answer.rindex(b"\ndata: ") + len(b"\ndata: ")
            self._answered(answer[:12], answer[start : answer.index(b"\r\n", start)])


class Crew:
    """All callers of one target; `run` may be called again and again on the same connections."""

    kind: type[Caller] = Caller

    def __init__(self, url: str, callers: int = 16, k: int = 10, **params: Any) -> None:
        """`params`: what questions hold besides their query and `k`."""
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.size = callers
        self.k = k
        self.questions = cycle(enumerate(self.requests(f"{self.host}:{self.port}", parts.path, params)))
        self.received = 0
        """Bytes of answers, heads included."""
        self.callers: list[Caller] = []
        self.tally = Tally()
        self.unasked = 0
        self.working = 0
        self.finished: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"Crew({self.host}:{self.port}, working={self.working}/{self.size}, unasked={self.unasked})"

    def requests(self, authority: str, path: str, params: dict[str, Any]) -> list[bytes]:
        """What is asked, in turn."""
        return prebuilt_questions(authority, path, {"k": self.k, **params})

    async def connect(self) -> None:
        """Open every caller's connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        for _ in range(self.size):
            _, caller = await loop.create_connection(lambda: self.kind(self), self.host, self.port)
            self.callers.append(caller)

    async def run(self, requests: int, limit: float = 300.0) -> Tally:
        """Ask `requests` questions; what is unanswered after `limit` seconds counts as faults."""
        self.tally = Tally()
        self.unasked, self.working = requests, len(self.callers)
        self.finished = asyncio.get_running_loop().create_future()
        started = perf_counter()
        for caller in self.callers:
            caller.ask()
        try:
            async with asyncio.timeout(limit):
                await self.finished
        except TimeoutError:
            self.tally.faults["no answer in time"] += requests - self.tally.answered
        self.tally.faults["not asked"] += max(requests - self.tally.answered, 0)
        self.tally.faults += Counter()  # drops the zeros
        self.tally.seconds = perf_counter() - started
        return self.tally

    def close(self) -> None:
        """Leave without waiting for anybody."""
        for caller in self.callers:
            caller.waiting = False
            caller.transport.abort()
        self.callers.clear()

    def next_question(self) -> tuple[int, bytes] | None:
        """An id and the bytes to send, or None if all have been asked."""
        if self.unasked <= 0:
            return None
        self.unasked -= 1
        return next(self.questions)

    def rest(self) -> None:
        """One caller has nothing left to do."""
        self.working -= 1
        if self.working == 0 and self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    def fault_of(self, status: bytes, body: bytes, asked_id: int) -> str | None:
        """Why an answer is not the one that was asked for; None if it is."""
        if status != b"HTTP/1.1 200":
            return f"status {status[9:].decode('latin-1')}"
        message = orjson.loads(body)
        if message.get("id") != asked_id:
            return "another id"
        if "error" in message:
            return f"error {message['error'].get('code')}"
        result = message["result"]
        if result.get("_meta", {}).get("degraded"):
            return "degraded"  # an engine that was dropped costs nothing: such an answer must not count
        return None if len(result["hits"]) == self.k else f"{len(result['hits'])} hits"


class StreamCrew(Crew):
    """Callers that ask for event streams."""

    kind = StreamCaller

    def requests(self, authority: str, path: str, params: dict[str, Any]) -> list[bytes]:
        params = {"k": self.k, "_meta": {"progressToken": "t"}, **params}
        return prebuilt_questions(authority, path, params, "text/event-stream")


def prebuilt_questions(
    authority: str, path: str, params: dict[str, Any], accept: str = "application/json"
) -> list[bytes]:
    """VARIANTS whole HTTP requests; the JSON-RPC id is the position in the list."""
    return [prebuilt_question(authority, path, number, params, accept) for number in range(VARIANTS)]


def prebuilt_question(
    authority: str, path: str, number: int, params: dict[str, Any], accept: str = "application/json"
) -> bytes:
    """One whole HTTP request with this JSON-RPC id."""
    asked = {"query": f"how do engines rank passage number {number % VARIANTS}", **params}
    body = orjson.dumps({"jsonrpc": "2.0", "id": number, "method": "retrieve", "params": asked})
    head = f"POST {path}/retrieve HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
    return f"{head}Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def drive(url: str, requests: int, callers: int, k: int) -> Tally:
    """One run against `url` on fresh connections. Raises OSError if it cannot be reached."""
    crew = Crew(url, callers, k)
    try:
        await crew.connect()
        return await crew.run(requests)
    finally:
        crew.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.load", description=__doc__)
    parser.add_argument("url", metavar="URL", help="base URL, such as http://127.0.0.1:8080/rcp")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("-k", type=int, default=10)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tally = runner.run(drive(args.url, args.requests, args.callers, args.k))
    print(json.dumps(tally.summary()))
    sys.exit(1 if tally.faults else 0)


if __name__ == "__main__":
    main()
