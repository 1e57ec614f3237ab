"""Takes the pictures of the console that the documents show: each view, light and dark.

Run it as `python -m tests.support.pictures docs/images`.
"""

import asyncio
import sys
from pathlib import Path

from playwright.async_api import Page

from tests.support.browser import browsing
from tests.support.console_stage import Stage, broken, staged, told, usual
from tests.support.scripted_engine import Asked, ScriptedEngine

QUESTIONS = ["sort a list", "sorted", "stable sort", "merge", "order by", "radix", "natural order", "graph"]


def slow(result: object, seconds: float) -> object:
    """An answer that takes its time."""

    async def answer(asked: Asked) -> object:
        await asyncio.sleep(seconds)
        return result

    return answer


def engines() -> dict[str, ScriptedEngine]:
    """The usual engines, one of them slow, and two with trouble."""
    made = usual()
    for name, seconds in (("docs", 0.012), ("code", 0.034), ("wiki", 0.085)):
        made[name].answers["retrieve"] = slow(made[name].answers["retrieve"], seconds)
    made["tickets"] = ScriptedEngine(results=told("natsort", "sql.orderby", "sorted", least=0.2), name="Tickets")
    made["archive"] = ScriptedEngine(name="Archive")
    made["archive"].answers["retrieve"] = broken()
    return made


async def ask(page: Page) -> None:
    """Ask, and wait for the answer."""
    await page.fill("#query", QUESTIONS[0])
    await page.click("#ask")
    await page.wait_for_selector(".stack")


async def shot(page: Page, folder: Path, name: str) -> None:
    await page.evaluate("document.getElementById('said').textContent = ''")
    await page.screenshot(path=folder / f"{name}.png")


async def views(stage: Stage, folder: Path, dark: bool, width: int, mark: str) -> None:
    """Every view once."""
    async with browsing(f"{stage.url}/#/ask", dark=dark, width=width, height=900) as (page, _):
        for question in QUESTIONS[1:]:
            await page.fill("#query", question)
            await page.click("#ask")
            await page.wait_for_selector(".hit .stack")
            await asyncio.sleep(0.11)
        await ask(page)
        await page.locator("#weight-wiki").fill("4")
        await page.wait_for_selector(".moved")
        await shot(page, folder, f"ask-{mark}")
        await page.click("text=Explain this answer")
        await page.wait_for_selector("text=Why each hit")
        await shot(page, folder, f"explain-{mark}")
        await page.click("nav >> text=Engines")
        await page.click("#engine-code")
        await page.wait_for_selector("#engine svg .p50[d^=M]", state="attached")
        await shot(page, folder, f"engines-{mark}")
        await page.click("nav >> text=Overlap")
        await page.wait_for_selector(".matrix")
        await shot(page, folder, f"overlap-{mark}")
        await page.click("nav >> text=Tenants")
        await page.wait_for_selector("text=This gateway")
        await shot(page, folder, f"settings-{mark}")


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"admin": {"drills": True}, "server": {"id": "rcp-gateway-1f0c"}}
    async with staged(engines(), settings, {"wiki": {"weight": 0.8}, "docs": {"priority": 1}}) as stage:
        await views(stage, folder, False, 1440, "light")
        await views(stage, folder, True, 1440, "dark")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
