"""A gateway over scripted lists, in a thread on a free port: it fuses what its engines are said to return."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from app.fusion.ranked_lists import FusionConfig, RankedList
from app.fusion.rrf import fuse

Hits = Sequence[Mapping[str, Any]]


def hits(*ids: Any, confidence: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Hits with these ids, best first, with descending scores and these confidences."""
    listed: list[dict[str, Any]] = [{"id": key, "score": 9.0 - place} for place, key in enumerate(ids)]
    for hit, value in zip(listed, confidence, strict=False):
        hit["confidence"] = value
    return listed


@dataclass
class JudgedGateway:
    """What each engine returns for a query text, and what goes wrong for whom."""

    lists: dict[str, dict[str, Hits]] = field(default_factory=dict)
    errors: dict[tuple[str | None, str], Any] = field(default_factory=dict)
    """(engine or None for the whole gateway, query text) -> the JSON-RPC error in place of a result."""
    down: dict[str, str | None] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    """`_meta.x-gateway` of every answer of the whole gateway."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    credentials: set[str | None] = field(default_factory=set)
    url: str = ""
    busy: int = 0
    busiest: int = 0
    lock: Lock = field(default_factory=Lock)

    def engines(self) -> dict[str, Any]:
        """The body of `GET /engines`."""
        listed = [{"id": name, "up": True, "capabilities": ["retrieve"], "reason": None} for name in self.lists]
        listed += [{"id": name, "up": False, "capabilities": [], "reason": why} for name, why in self.down.items()]
        return {"engines": listed}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON-RPC answer to one `retrieve`."""
        params = message["params"]
        self.asked.append(params)
        text, wishes = params["query"], params.get("x-gateway", {})
        chosen = wishes.get("engines")
        error = self.errors.get((chosen[0] if chosen else None, text))
        if error is not None:
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        weights = params.get("fusion", {}).get("weights", {})
        ranked = [
            RankedList(
                name,
                [dict(hit) for hit in lists.get(text, ())],
                weight=weights.get(name, 1.0),
                fetch_k=params["k"],
                confidence=self.readings.get(name, "ranked"),
                namespace=self.namespaces.get(name),
            )
            for name, lists in self.lists.items()
            if chosen is None or name in chosen
        ]
        options = FusionConfig(confidence_weight=wishes.get("confidenceWeight", 0.8))
        result: dict[str, Any] = {"hits": fuse(ranked, options).hits(0, params["k"])}
        if chosen is None:
            result["_meta"] = {"degraded": self.degraded, "x-gateway": self.report}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


@contextmanager
def listening(gateway: JudgedGateway) -> Iterator[JudgedGateway]:
    """The gateway, reachable at its `url` while the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(gateway)) as server:
        gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join()


def _handler(gateway: JudgedGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body leave together, or the second waits for the first to be acknowledged

        def do_GET(self) -> None:
            self._send(gateway.engines())

        def do_POST(self) -> None:
            gateway.credentials.add(self.headers.get("Authorization"))
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with gateway.lock:
                gateway.busy += 1
                gateway.busiest = max(gateway.busiest, gateway.busy)
            self._send(gateway.answer(message))
            with gateway.lock:
                gateway.busy -= 1

        def _send(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def write_lines(path: Path, *lines: Any) -> Path:
    """A file of JSON lines; a string is written as it is."""
    told = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in told), encoding="utf-8")
    return path
