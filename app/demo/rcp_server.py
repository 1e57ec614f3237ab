"""A demo engine as an RCP server on the published SDK, over HTTP or stdio."""

import argparse
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import rcp

from app.demo.demo_document import FIELDS, Search
from app.demo.filter_sql import OPERATORS
from app.demo.query_params import DemoQuery, read_question

FILTER_OFFER = {"fields": FIELDS, "operators": list(OPERATORS)}


def retrieve_offer(mode: str, score_scale: str, max_k: int) -> dict[str, Any]:
    """The `retrieve` capability (RCP §6) of an engine that ranks in one way and never scores below 0."""
    return {
        "maxK": max_k,
        "modes": [mode],
        "defaultMode": mode,
        "modalities": ["text"],
        "units": ["document"],
        "confidence": True,
        "deterministic": True,
        "scoreScale": score_scale,
        "scoreFloor": 0,
    }


def build_server(
    name: str, capabilities: Mapping[str, Mapping[str, Any]], search: Callable[[DemoQuery], Search]
) -> rcp.Server:
    """An SDK server that advertises `capabilities` and answers `retrieve` by `search`."""
    server = rcp.Server()
    server.set_info(name, _version())
    server.set_conformance("L0")
    for capability, offer in capabilities.items():
        server.advertise(capability, dict(offer))

    def retrieve(params: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        question = read_question(params, capabilities)
        result = search(question)
        usage: dict[str, Any] = {"candidates": result.candidates, "reranked": 0}
        usage["latencyMs"] = round((time.perf_counter() - started) * 1000, 3)
        if question.notes:
            usage["notes"] = list(question.notes)
        return {"hits": [found.hit(include_text=question.include_text) for found in result.found], "usage": usage}

    server.on("retrieve", retrieve)
    return server


def _version() -> str:
    try:
        return version("rcp-gateway")
    except PackageNotFoundError:
        return "0"


def say(name: str, text: str) -> None:
    """One line of progress on stderr; stdout may belong to the protocol."""
    sys.stderr.write(f"{name}: {text}\n")
    sys.stderr.flush()


def serve_http(name: str, build: Callable[[], rcp.Server], argv: list[str] | None = None) -> NoReturn:
    """`--port N`: build the engine, then serve it on 127.0.0.1:N until a signal. Exits 0, or 1 if the port is taken."""
    parser = argparse.ArgumentParser(prog=f"python -m app.demo.{name}", description=f"The demo engine '{name}'.")
    parser.add_argument("--port", type=int, required=True, help="loopback port to listen on")
    port = parser.parse_args(argv).port
    _end_on_signals()
    try:
        socket.create_server(("127.0.0.1", port)).close()  # a taken port shall not cost the seconds of indexing first
        server = build()
        say(name, f"listening on http://127.0.0.1:{port}/rcp")
        server.serve_http(port)
    except OSError as fault:
        say(name, f"cannot listen on port {port}: {fault.strerror}; choose another with --port")
        sys.exit(1)
    sys.exit(0)


def serve_stdio(build: Callable[[], rcp.Server]) -> NoReturn:
    """Build the engine, then serve it over stdin and stdout until the input ends or a signal comes. Exits 0."""
    _end_on_signals()
    build().serve_stdio()
    sys.exit(0)


def _end_on_signals() -> None:
    """SIGTERM and Ctrl-C end the process with 0: a demo engine holds nothing that must be saved."""

    def leave(_signal: int, _frame: object) -> NoReturn:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
