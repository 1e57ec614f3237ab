"""A real Chromium for tests of the console: one page per test, and everything that it complains about is remembered."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import ConsoleMessage, Page, Request, async_playwright, expect

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

PATIENCE = 60_000
"""Milliseconds before a page is called stuck; never waited for when all is well."""

expect.set_options(timeout=PATIENCE)

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
"""Containers let root have no sandbox and little shared memory."""


def chromium() -> str:
    """The program. Fails where there is none: .ci/run installs it."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found is not None, "no Chromium: apt-get install chromium"
    return found


VIOLATED = "event => console.error('policy', event.violatedDirective, event.blockedURI)"


CALLED_OFF = "net::ERR_ABORTED"
"""What became of a request that the page itself gave up, as when it is loaded again while one is under way."""


class Complaints(list[str]):
    """What a page said against itself: console errors, violations of its policy, faults of its scripts."""

    def expect(self, *parts: str) -> None:
        """Forget what holds one of these parts, and hold the page to everything else."""
        rest = [line for line in self if not any(part in line for part in parts)]
        self.clear()
        assert rest == []


@asynccontextmanager
async def browsing(
    url: str, *, width: int = 1280, height: int = 900, dark: bool = False, **more: Any
) -> AsyncIterator[tuple[Page, Complaints]]:
    """A page at `url`. When the block ends without a fault, the page must have had nothing to complain about."""
    complaints = Complaints()

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def lost(request: Request) -> None:
        if request.failure != CALLED_OFF:
            complaints.append(f"{request.url}: {request.failure}")

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS, timeout=PATIENCE)
        try:
            context = await browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
                **more,
            )
            context.set_default_timeout(PATIENCE)
            page = await context.new_page()
            page.on("console", heard)
            page.on("pageerror", lambda fault: complaints.append(str(fault)))
            page.on("requestfailed", lost)
            await page.add_init_script(f"addEventListener('securitypolicyviolation', {VIOLATED})")
            await page.goto(url)
            yield page, complaints
            assert complaints == [], complaints
        finally:
            await browser.close()
