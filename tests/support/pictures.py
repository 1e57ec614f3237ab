"""Takes the pictures of the console that the documents show: each view, light and dark.

Run it as `python -m tests.support.pictures docs/images`.
"""

import asyncio
import random
import sys
from pathlib import Path

from playwright.async_api import Page

from app.telemetry.rolling import SLOT_SECONDS, SLOTS
from tests.support.browser import browsing
from tests.support.console_stage import Stage, broken, staged, told, usual
from tests.support.scripted_engine import Asked, ScriptedEngine
from tests.support.tenancy import tenant

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


KEY = "a-key-for-pictures"

TENANTS = {
    "operations": tenant("*", keys=(KEY,), roles=["read", "admin"]),
    "search-team": tenant("docs", "code", keys=("a-key-of-theirs",), limits={"rps": 50, "hits_per_day": 100_000}),
    "support": tenant("wiki", "tickets", "archive", keys=("another-key",), roles=["read", "feedback"]),
}


def remember(stage: Stage) -> None:
    """Minutes in which the engines did well and less well, so that there is something to draw."""
    chance = random.Random(7)
    windows = stage.state.instrumentation.windows
    for place, engine in enumerate(stage.engines):
        usual_seconds = (0.012, 0.034, 0.085, 0.02, 0.03)[place]
        for back in range(SLOTS - 1, 0, -1):
            for _ in range(20):
                took = usual_seconds * chance.lognormvariate(0.2, 0.4) * (2.2 if 9 < back < 13 and place == 1 else 1)
                sick = (engine == "archive" and back < 9) or chance.random() < 0.004
                windows.of(engine).add(windows.clock() - back * SLOT_SECONDS, took, sick)


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
    async with browsing(f"{stage.url}/#/ask", dark=dark, width=width, height=900) as (page, complaints):
        await page.fill("#key", KEY)
        await page.click("text=Open")
        for question in QUESTIONS[1:]:
            await page.fill("#query", question)
            await page.click("#ask")
            await page.wait_for_selector(".hit .stack")
            await asyncio.sleep(0.11)
        remember(stage)
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
        await page.click("nav >> text=Federation")
        await page.wait_for_selector(".trouble")
        await shot(page, folder, f"federation-{mark}")
        await page.click("nav >> text=Overlap")
        await page.wait_for_selector(".matrix")
        await shot(page, folder, f"overlap-{mark}")
        await page.click("nav >> text=Tenants")
        await page.wait_for_selector("text=This gateway")
        await shot(page, folder, f"settings-{mark}")
        complaints.expect("401")


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"admin": {"drills": True}, "server": {"id": "rcp-gateway-1f0c"}}
    for mark in ("light", "dark"):
        entries = {"wiki": {"weight": 0.8}, "docs": {"priority": 1}}
        async with staged(engines(), settings, entries, tenants=TENANTS) as stage:
            await views(stage, folder, mark == "dark", 1440, mark)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
