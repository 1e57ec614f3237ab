"""The rig: the processes a measurement needs, started, watched and stopped.

Decides how stubs, floor and gateway are launched and when each is ready, and reads their CPU time and memory from the
kernel (Linux). Every child is stopped by its own process id, whatever ends the measurement.
It refuses to know what is measured.
"""

import asyncio
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.demo.processes import end_with_parent

PROJECT = Path(__file__).resolve().parents[1]
START_LIMIT = 90.0
"""Seconds a child has to become ready."""
STOP_LIMIT = 10.0
"""Seconds a child has to end after SIGTERM before it is killed."""


class RigError(Exception):
    """The measurement could not be set up; the message says what to look at."""


class Child:
    """One process of the rig, and the base URLs it serves."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        checkout: Path,
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self.log = log
        self.urls: list[str] = []
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [python, "-m", *arguments],
                cwd=checkout,  # `python -m` looks for modules there first
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches the rig alone, which then stops its children in order
                preexec_fn=end_with_parent,
            )

    def __repr__(self) -> str:
        return f"Child({self.name}, pid={self.process.pid}, exit={self.process.poll()}, urls={self.urls})"

    def cpu_ns(self) -> int:
        """User and system time of all its threads so far, in nanoseconds."""
        return cpu_ns_of(self.process.pid)

    def rss_bytes(self) -> int:
        """Resident memory now."""
        resident = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")

    def fault(self, problem: str) -> RigError:
        """An error that carries the end of the child's stderr."""
        tail = self.log.read_text(errors="replace")[-2000:].strip()
        return RigError(f"{self.name} {problem}" + (f"; the end of its log:\n{tail}" if tail else ""))

    def read_urls(self) -> list[str]:
        """The first line on stdout: a JSON list of base URLs. Raises RigError."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_LIMIT):
                raise self.fault("did not say where it listens")
        line = self.process.stdout.readline()
        if not line:
            raise self.fault("ended before it listened")
        urls: list[str] = json.loads(line)
        return urls

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help in time."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def cpu_ns_of(pid: int) -> int:
    """User and system time of a process so far, ended threads included, in nanoseconds. Raises OSError."""
    # The clock id that clock_getcpuclockid(3) computes for a process: exact, where /proc/<pid>/stat counts ticks.
    return time.clock_gettime_ns((~pid << 3) | 2)


def environment() -> dict[str, str]:
    """This process's environment without overrides of the gateway's settings: the defaults are what is measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RCP_GATEWAY_")}


@contextmanager
def running(
    name: str,
    arguments: Sequence[str],
    workspace: Path,
    checkout: Path = PROJECT,
    python: str = sys.executable,
) -> Iterator[Child]:
    """A child for the length of the block, of the code in `checkout`; its stderr goes to `workspace`."""
    child = Child(name, arguments, workspace / f"{name}.log", checkout, python)
    try:
        yield child
    finally:
        child.stop()


@contextmanager
def stubs(arguments: Sequence[str], workspace: Path) -> Iterator[Child]:
    """The stub engines, listening. Raises RigError."""
    with running("stubs", ["bench.stub_engine", *arguments], workspace) as child:
        child.urls = child.read_urls()
        yield child


@contextmanager
def floor(engines: Sequence[str], workspace: Path, name: str = "floor") -> Iterator[Child]:
    """The floor in front of `engines`, listening. Raises RigError."""
    with running(name, ["bench.floor", *engines], workspace) as child:
        child.urls = child.read_urls()
        yield child


@contextmanager
def gateway(
    engines: Sequence[str],
    workspace: Path,
    name: str = "gateway",
    checkout: Path = PROJECT,
    python: str = sys.executable,
    timeout_ms: int = 2000,
    settings: Path | None = None,
) -> Iterator[Child]:
    """The real gateway of `checkout` in front of `engines`, with every engine joined. Raises RigError.

    `python`: the interpreter that runs it. Where that has the gateway installed, give a `checkout` without sources.
    `settings`: a file in the format of gateway.yaml, with sections other than `log` and `server`.
    """
    # A file of its own: a running gateway would follow the next one's settings.
    registry, config = workspace / "rcp.json", workspace / f"{name}.yaml"
    entries = [{"id": f"stub-{n}", "url": url, "timeoutMs": timeout_ms} for n, url in enumerate(engines)]
    registry.write_text(json.dumps({"engines": entries}))
    more = "" if settings is None else settings.read_text()
    config.write_text(f"log:\n  level: info\nserver:\n  drain_seconds: 0\n{more}")  # else at its defaults, the log on
    arguments = ["app", "serve", "--registry", str(registry), "--config", str(config)]
    arguments += ["--host", "127.0.0.1", "--port", "0"]
    with running(name, arguments, workspace, checkout, python) as child:
        wait_until(child, lambda: port_in(child.log) > 0, "did not say where it listens")
        root = f"http://127.0.0.1:{port_in(child.log)}"
        wait_until(child, lambda: fetch(f"{root}/readyz") is not None, "did not become ready")
        wait_until(child, lambda: joined(fetch(f"{root}/engines")) == len(engines), "was not joined by every engine")
        child.urls = [f"{root}/rcp"]
        yield child


def joined(listing: bytes | None) -> int:
    """How many engines the operator's listing shows as up."""
    engines: list[dict[str, Any]] = json.loads(listing)["engines"] if listing else []
    return sum(1 for engine in engines if engine["up"])


def wait_until(child: Child, condition: Callable[[], bool], problem: str) -> None:
    """Ask again until `condition` holds. Raises RigError when the child ends or START_LIMIT passes."""
    until = time.monotonic() + START_LIMIT
    while not condition():
        if child.process.poll() is not None:
            raise child.fault(f"ended with status {child.process.returncode}")
        if time.monotonic() > until:
            raise child.fault(problem)
        time.sleep(0.05)


def fetch(url: str) -> bytes | None:
    """The body of a 200 answer; None for any other, or when nobody listens yet."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as response:
            body: bytes = response.read()
            return body
    except OSError:  # URLError and HTTPError are among them
        return None


def port_in(log: Path) -> int:
    """Where a gateway says in its log that it listens; 0 if it has not said so yet."""
    for line in log.read_text(errors="replace").splitlines(keepends=True):
        if '"listening"' in line and line.endswith("\n"):
            return int(json.loads(line)["port"])
    return 0


async def until_stopped() -> None:
    """Wait for SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def stop_on_signals() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that its children are stopped; also where Ctrl-C was ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Not by raising here: an exception in the middle of a protocol callback is swallowed by the event loop. SIGINT is
    # what asyncio.Runner turns into a cancelled main task.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
