"""axe-core, which knows what stands in the way of people who do not see or point: fetched once by npm."""

import fcntl
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from playwright.async_api import Page

VERSION = "4.14.1"
ATTEMPTS = 3
"""A registry that cannot be reached for a moment may be there for the next."""

FOLDER = Path(__file__).parents[2] / ".tools"


@cache
def _script() -> str:
    folder = FOLDER / f"axe-core-{VERSION}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share the folder
        if not script.exists():
            options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            command = ["npm", "install", "--prefix", str(folder), *options, f"axe-core@{VERSION}"]
            for attempt in reversed(range(ATTEMPTS)):
                fetched = subprocess.run(command, check=attempt == 0, timeout=240)
                if fetched.returncode == 0:
                    break
    return script.read_text(encoding="utf-8")


async def barriers(page: Page) -> list[str]:
    """What axe finds serious or critical on the page as it stands, a line each."""
    await page.evaluate(_script())
    found: Any = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['impact']} {fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
