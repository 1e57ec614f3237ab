"""The parts of the demo: names, ports, registry, settings and commands of its engines and gateway."""

import errno
import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import app

HTTP_ENGINES = ("stdlib", "concepts")
STDIO_ENGINE = "packages"
ENGINES = (*HTTP_ENGINES, STDIO_ENGINE)

PROJECT = Path(app.__file__).parent.parent
"""Where `python -m app…` means this project, whatever package `app` the user's own folder may hold."""

SETTINGS = """\
# Nobody has to be told first that the demo ends.
server:
  drain_seconds: 0
# Engines that are still reading their text shall join soon after they listen.
engines:
  reconnect_max_seconds: 0.5
log:
  format: console
"""


@dataclass(frozen=True, slots=True)
class Staging:
    """One demo: the gateway's port, the port of each HTTP engine, and the folder that its files are in.

    `held` keep the ports from everybody else while engines read and index: bound, but not listened on.
    """

    folder: Path
    port: int
    engine_ports: dict[str, int]
    held: tuple[socket.socket, ...] = ()

    def close(self) -> None:
        """Let go of the ports."""
        for each in self.held:
            each.close()

    @property
    def url(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def registry_file(self) -> Path:
        """The registry that the gateway reads (RCP §16.1)."""
        return self.folder / "rcp.json"

    def write_files(self) -> None:
        """Write the registry and the gateway's settings."""
        self.registry_file.write_text(json.dumps({"engines": self._entries()}, indent=2) + "\n", encoding="utf-8")
        (self.folder / "gateway.yaml").write_text(SETTINGS, encoding="utf-8")

    def _entries(self) -> list[dict[str, object]]:
        # An SDK server takes one connection at a time and lets 16 wait; the rest of us waits at the gateway.
        bounds = {"timeoutMs": 5000, "maxConcurrency": 8}
        entries: list[dict[str, object]] = [
            {"id": name, "transport": "http", "url": f"http://127.0.0.1:{port}/rcp", **bounds}
            for name, port in self.engine_ports.items()
        ]
        command = [sys.executable, "-m", f"app.demo.{STDIO_ENGINE}"]
        entries.append({"id": STDIO_ENGINE, "transport": "stdio", "command": command, "idNamespace": "pkg", **bounds})
        return entries

    def commands(self) -> dict[str, list[str]]:
        """The processes to start, by name, in this order."""
        engines = {
            name: [sys.executable, "-m", f"app.demo.{name}", "--port", str(port)]
            for name, port in self.engine_ports.items()
        }
        files = ["--registry", str(self.registry_file), "--config", str(self.folder / "gateway.yaml")]
        gateway = [sys.executable, "-m", "app", "serve", *files, "--host", "127.0.0.1", "--port", str(self.port)]
        return engines | {"gateway": gateway}


def stage(folder: Path, port: int) -> Staging:
    """A demo in `folder` whose gateway is to listen on `port` (0: any free one), its engines on free ports."""
    held = hold_ports(len(HTTP_ENGINES) + (port == 0))
    free = [each.getsockname()[1] for each in held]
    return Staging(folder, port or free[-1], dict(zip(HTTP_ENGINES, free, strict=False)), held)


def hold_ports(count: int) -> tuple[socket.socket, ...]:
    """Sockets on `count` different free loopback ports: who is told the port can listen on it, nobody is given it."""
    held = []
    for _ in range(count):
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        held.append(taken)
    return tuple(held)


def is_taken(port: int) -> bool:
    """Whether somebody listens on loopback `port` (0 never is). Raises OSError for a port we may not use."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as fault:
        if fault.errno != errno.EADDRINUSE:
            raise
        return True
    return False
