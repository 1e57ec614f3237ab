"""Programs for Node that `make inspector` installs: clients of MCP, its conformance suite, and the tool for bundles."""

import asyncio
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".venv" / "inspector"
MODULES = FOLDER / "node_modules"
BIN = MODULES / ".bin"


def needs(package: str) -> pytest.MarkDecorator:
    """Skips tests where this package is not installed."""
    missing = not (MODULES / package).is_dir() or not (BIN / "node").exists()
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: `make inspector` does it")


async def run(*command: str, cwd: Path | None = None, seconds: float = 120) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a program, with the installed Node first in its PATH."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
