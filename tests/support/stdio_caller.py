"""`rcp-gateway stdio` as a child process, and the test as its caller over the real pipes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.running_gateway import START_SECONDS, Json

PROJECT = Path(__file__).parents[2]


def command(directory: Path, entries: list[Json], settings: str = "{}", name: str = "stdio") -> list[str]:
    """The command line that serves these engines with the command `name`; its files are written to `directory`."""
    (directory / "rcp.json").write_text(json.dumps({"engines": entries}))
    (directory / "gateway.yaml").write_text(settings)
    files = ["--registry", str(directory / "rcp.json"), "--config", str(directory / "gateway.yaml")]
    return [sys.executable, "-m", "app", name, *files]


class StdioCaller:
    """The caller of one child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    def send(self, message: Any) -> None:
        """Write one message as a line."""
        self.stdin.write(json.dumps(message).encode() + b"\n")

    def ask(self, message_id: Any, method: str, **params: Any) -> None:
        """Send one request."""
        self.send({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})

    async def message(self) -> Any:
        """The next line."""
        line = await asyncio.wait_for(self.stdout.readline(), START_SECONDS)
        assert line.endswith(b"\n"), line
        return json.loads(line)

    async def end(self) -> tuple[int, bytes, str]:
        """Close its stdin and wait: its exit code, what was left on stdout, and stderr."""
        self.stdin.close()
        out, err = await asyncio.wait_for(self.process.communicate(), START_SECONDS)
        assert self.process.returncode is not None
        return self.process.returncode, out, err.decode()


@asynccontextmanager
async def calling(argv: list[str]) -> AsyncIterator[StdioCaller]:
    """A child process for as long as a block runs; it is killed if it is still there at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=PROJECT, limit=2**25
    )
    caller = StdioCaller(process)
    try:
        yield caller
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
