"""`rcp-gateway demo`: start a gateway with three demo engines over local text, and send it one query.

The engines are in `app/demo/`; this module starts, watches and stops their processes.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from app.cli import gateway_client
from app.cli.failures import Failure
from app.cli.terminal import abandoned, answers, asides, one_line
from app.demo.processes import DemoProcess, DemoProcesses
from app.demo.staging import ENGINES, Staging, is_taken, stage

if TYPE_CHECKING:
    from rich.console import Console

SAMPLE = "how do I sort a list"
READY_SECONDS = 180.0
"""Longest wait for the engines, which read and index some megabytes of text, on slow machines as well."""
POLL_SECONDS = 0.3
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the demo."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    query: Annotated[
        list[str] | None, typer.Argument(help=f"Query text. Default: {SAMPLE}.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 picks a free one.")] = 8080,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Maximum number of hits.")] = 5,
    serve: Annotated[bool, typer.Option(" /--no-serve", help="Exit after the response.", show_default=False)] = True,
) -> None:
    """Start a gateway with three demo engines and query it. If a demo is already running, query that one."""
    question = " ".join(query or ()) or SAMPLE
    if not _taken(port):
        _require_libraries()
        try:
            with _signals_interrupt(), TemporaryDirectory(prefix="rcp-gateway-demo-") as folder:
                _run_demo(stage(Path(folder), port), question, k, serve)
            return
        except DemoPortTaken as lost:
            port = lost.port
    _query_running_demo(f"http://127.0.0.1:{port}", port, question, k)


class DemoPortTaken(Exception):
    """Another process, such as a second demo started just before, has taken the port of the gateway."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.port = port


def _query_running_demo(url: str, port: int, question: str, k: int) -> None:
    """Query the demo that listens on `port`, once its engines are up. Raises Failure."""
    _require_demo(url, port)
    asides().print(f"using the demo that is running at {url}")
    _await_starting_engines(url, asides())
    _ask(url, question, k)


def _require_libraries() -> None:
    """Check that the extra `demo` is installed, before anything starts. Raises ModuleNotFoundError."""
    for library in ("rcp", "sklearn"):
        if find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named '{library}'", name=library)


def _taken(port: int) -> bool:
    try:
        return is_taken(port)
    except OSError as fault:
        raise Failure(f"port {port} cannot be used ({fault.strerror}); {_other_port()}") from None


def _other_port() -> str:
    return 'choose another with: rcp-gateway demo --port 8090 (or: make demo ARGS="--port 8090")'


def _require_demo(url: str, port: int) -> None:
    """Raises Failure if the process that listens on `port` is not a gateway with the demo engines."""
    try:
        listed = {entry.get("id") for entry in gateway_client.engines(url, 5.0)}
    except Failure:
        raise Failure(f"port {port} is taken by another program; {_other_port()}") from None
    if not listed.issuperset(ENGINES):
        raise Failure(f"port {port} is taken by a gateway with other engines; {_other_port()}")


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Within the block, SIGTERM and a closed terminal act like Ctrl-C, so that no process is left running."""

    def interrupt(_signal: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    # A signal that was inherited as ignored (nohup) stays ignored.
    heeded = [number for number in ENDS[1:] if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_demo(staging: Staging, question: str, k: int, serve: bool) -> None:
    """Start everything, query, serve; stop everything in any case."""
    console = asides()
    staging.write_files()
    processes = DemoProcesses(lambda name, line: _show_progress(console, name, line))
    try:
        _start(processes, staging, console)
        _ask(staging.url, question, k)
        if serve:
            _print_next_steps(console, staging)
            _keep_serving(processes, console)
    finally:
        for number in ENDS:  # a second Ctrl-C must not interrupt the cleanup
            signal.signal(number, signal.SIG_IGN)
        processes.stop()
        staging.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _show_progress(console: "Console", name: str, line: str) -> None:
    """Print progress messages of the engines. The log of the gateway is kept for the case that it fails."""
    if name != "gateway" and not abandoned():
        console.print(one_line(line), style="dim")


def _start(processes: DemoProcesses, staging: Staging, console: "Console") -> None:
    """Start the processes and wait until every engine is up. Raises Failure."""
    console.print(f"starting {len(ENGINES)} engines and a gateway on {staging.url}")
    for name, command in staging.commands().items():
        processes.start(name, command)
    _await_engines(set(ENGINES), staging.url, console, lambda: _check_start(processes.started, staging.port))


def _await_engines(waiting: set[str], url: str, console: "Console", check: Callable[[], None]) -> None:
    """Wait until these engines are up. `check` may end the wait by raising. Raises Failure after READY_SECONDS."""
    begun = time.monotonic()
    with console.status("waiting for the engines") as status:
        while waiting:
            check()
            if time.monotonic() - begun > READY_SECONDS:
                raise Failure(f"after {READY_SECONDS:.0f} s still not up: {', '.join(sorted(waiting))}")
            time.sleep(POLL_SECONDS)
            for name in sorted(waiting & _engines_up(url)):
                console.print(f"{name} is up after {time.monotonic() - begun:.1f} s", style="green")
                waiting.discard(name)
            if waiting:
                status.update(f"waiting for {', '.join(sorted(waiting))}")


def _await_starting_engines(url: str, console: "Console") -> None:
    """Wait for engines of a running demo that are still starting. Raises Failure.

    An engine that was up before and has ended since is not waited for.
    """
    new = {
        entry["id"] for entry in gateway_client.engines(url, 5.0) if not entry.get("up") and not entry.get("version")
    }
    new &= set(ENGINES)
    if new:
        console.print(f"waiting for {', '.join(sorted(new))}, still starting")
        _await_engines(new, url, console, lambda: _require_answer(url))


def _require_answer(url: str) -> None:
    """Raises Failure if the other demo has ended meanwhile."""
    gateway_client.engines(url, 5.0)


def _engines_up(url: str) -> set[str]:
    try:
        return {entry["id"] for entry in gateway_client.engines(url, 2.0) if entry.get("up") is True}
    except Failure:  # the gateway is not listening yet
        return set()


def _check_start(processes: Sequence[DemoProcess], port: int) -> None:
    """As `_check_alive`; raises DemoPortTaken if the gateway ended because another process has its port."""
    if any(process.name == "gateway" and process.ended is not None for process in processes) and _taken(port):
        raise DemoPortTaken(port)
    _check_alive(processes)


def _check_alive(processes: Sequence[DemoProcess]) -> None:
    """Raises Failure if a process has ended, and BrokenPipeError if the output of the command is closed."""
    if abandoned():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    for process in processes:
        if process.ended is not None:
            raise Failure(f"{process.name} ended with {process.ended}; last output:\n{process.last_words}")


def _ask(url: str, question: str, k: int) -> None:
    """Query the gateway and print the hits, as `rcp-gateway query` does."""
    from app.cli.hit_table import render_hits, render_notes

    result: dict[str, Any] = gateway_client.call(url, "retrieve", {"query": question, "k": k}, 30.0)
    console = answers()
    console.print(f"\n{question}\n", style="bold")
    render_hits(result, console)
    render_notes(result, asides(), k)


def _print_next_steps(console: "Console", staging: Staging) -> None:
    program = sys.argv[0] if not sys.argv[0].endswith(".py") else "python -m app"
    url, options = ("", "") if staging.port == 8080 else (f" --url {staging.url}", f"--port {staging.port} ")
    console.print(
        f"\nserving RCP on {staging.url}/rcp until Ctrl-C. Send more queries from a second terminal:\n", style="bold"
    )
    console.print(f'  make demo ARGS="{options}read a csv file"')
    console.print(f'  {program} query "read a csv file"{url}')
    console.print(f"  {program} engines{url}")
    console.print(f"\nregistry: {staging.registry_file}")


def _keep_serving(processes: DemoProcesses, console: "Console") -> None:
    """Wait for Ctrl-C. Reports an engine that ends; raises Failure if the gateway ends."""
    try:
        running = list(processes.started)
        while True:
            time.sleep(POLL_SECONDS)
            _check_alive([])
            for process in [process for process in running if process.ended is not None]:
                if process.name == "gateway":
                    _check_alive([process])
                console.print(f"{process.name} has ended; the gateway continues without it", style="yellow")
                running.remove(process)
    except KeyboardInterrupt:
        console.print("stopping")
