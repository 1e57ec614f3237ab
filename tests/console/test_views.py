"""The console's other views in a real browser: plans, engines and what can be done to them, overlap, settings."""

import sys
from typing import Any

from playwright.async_api import Page, expect

from app.federation.learning import Event
from tests.console.test_ask import ask
from tests.support.browser import browsing
from tests.support.console_stage import broken, staged, usual
from tests.support.listening_gateway import listening
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tenancy import tenant

ADMIN_KEY = "the-admins-key"


def row(page: Page, engine: str) -> Any:
    """The line of one engine in the table."""
    return page.locator(f"tr[data-engine='{engine}']")


async def goto(page: Page, view: str) -> None:
    """Another view, as a link leads there."""
    await page.evaluate(f"location.hash = '#/{view}'")


async def test_a_plan_is_shown_without_asking() -> None:
    """Who would get what, who would not and why; after an answer also what each hit's rank is made of."""
    async with staged() as stage, browsing(f"{stage.url}/#/explain?q=sort&mode=dense") as (page, _):
        plan = page.locator("section[aria-label=Plan]")
        await expect(plan).to_contain_text("Plan: 2 engines asked, 1 left out")
        await expect(plan.locator("tr", has_text="wiki")).to_contain_text("option")
        await plan.locator("tr", has_text="docs").locator("summary").click()
        await expect(plan.locator("tr", has_text="docs").locator("pre")).to_contain_text('"query": "sort"')
        assert [engine.requests() for engine in stage.engines.values()] == [[], [], []]
        await goto(page, "ask")
        await ask(page, "sort")
        await page.click("text=Explain this answer")
        parts = page.locator("section[aria-label='Last answer']")
        await expect(parts.locator("tbody tr").first).to_contain_text("#1")
        await expect(parts.locator("thead")).to_contain_text("code")
        await page.click("text=The plan as JSON")
        await expect(page.locator("pre.full")).to_contain_text('"deadlineMs"')
        await page.fill("#query", " ")
        await page.click("text=Plan >> nth=-1")


async def test_engines_and_what_can_be_done_to_them() -> None:
    """An open breaker is seen and reset, an engine switched off and on, shaken hands with, and drilled."""
    engines = usual()
    engines["wiki"].answers["retrieve"] = broken()
    settings = {"admin": {"drills": True}, "engines": {"breaker_failures": 2, "breaker_open_ms": 60_000}}
    async with (
        staged(engines, settings, {"wiki": {"retries": 0}}) as stage,
        browsing(stage.url) as (page, _),
    ):
        for _ in range(2):
            await ask(page)
        await page.click("nav >> text=Engines")
        await expect(row(page, "wiki")).to_contain_text("open, again in")
        await expect(row(page, "wiki")).to_contain_text("100 %")
        await expect(row(page, "docs")).to_contain_text("closed")
        assert await row(page, "docs").locator("svg .p50").get_attribute("d")
        await expect(row(page, "wiki").locator("svg .err")).not_to_have_count(0)
        await page.click("#engine-wiki")
        detail = page.locator("#engine")
        await expect(detail).to_contain_text("the index is being rebuilt")
        await expect(detail.locator("#advertisement .lack").first).to_be_visible()
        await page.click("#act-reset")
        await expect(row(page, "wiki")).not_to_contain_text("open")
        await page.click("#act-off")
        await page.click("#confirm-off")
        await expect(row(page, "wiki")).to_contain_text("off")
        await expect(page.locator("#act-on")).to_be_visible()
        await page.click("#act-on")
        await expect(page.locator("#act-off")).to_be_visible()
        handshakes = len(stage.engines["wiki"].requests("initialize"))
        await page.click("#act-handshake")
        await expect(page.locator("#said")).to_contain_text("handshake completed with Wiki")
        assert len(stage.engines["wiki"].requests("initialize")) > handshakes
        await page.click("summary:has-text('Drill')")
        await page.select_option("#drill-kind", "error")
        await page.click("#act-drill")
        await expect(row(page, "wiki")).to_contain_text("drill: error")
        await page.click("#end-drill")
        await expect(row(page, "wiki")).not_to_contain_text("drill")


async def test_a_press_that_outlasts_a_refresh_is_a_click() -> None:
    """What is under a pointer that is down stays there until it is let go, however often the view is loaded anew."""
    async with staged() as stage, browsing(f"{stage.url}/#/engines?id=wiki") as (page, _):
        await page.locator("#engine-docs").focus()
        await page.hover("#act-off")
        async with page.expect_response("**/admin/engines"):
            await page.mouse.down()
        await page.evaluate("new Promise(drawn => setTimeout(drawn, 200))")
        await page.mouse.up()
        await expect(page.locator("#confirm-off")).to_be_visible()


async def test_what_a_child_wrote_to_stderr() -> None:
    """In the detail of a stdio engine stands, as text, the last that it wrote to stderr."""
    command = [sys.executable, "-c", "import sys; sys.stderr.write('<b>no</b> index \\x1b[1m'); sys.stdin.read()"]
    async with (
        listening([{"id": "child", "command": command}], reach=False) as (_, port),
        browsing(f"http://127.0.0.1:{port}/#/engines?id=child") as (page, _),
    ):
        await page.click("summary:has-text('stderr')")
        await expect(page.locator("#stderr")).to_have_text("<b>no</b> index ␛[1m")


async def test_fifty_engines() -> None:
    """Fifty engines fit: the page itself does not scroll sideways, and all of them are there."""
    entries = [f"engine-{place:02}" for place in range(50)]
    async with staged({name: ScriptedEngine() for name in entries}) as stage:
        for width in (360, 1440):
            async with browsing(f"{stage.url}/#/engines", width=width) as (page, _):
                await expect(page.locator("tr[data-engine]")).to_have_count(50)
                await goto(page, "ask")
                await ask(page)
                await expect(page.locator(".waterfall li")).to_have_count(53)
                await goto(page, "overlap")
                await expect(page.locator(".matrix tbody tr")).to_have_count(50)
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_overlap_of_recent_answers() -> None:
    """Before the first answer it says that there is nothing; then the matrix has the pairs and the shares add up."""
    async with staged() as stage, browsing(f"{stage.url}/#/overlap") as (page, _):
        await expect(page.locator(".state h2")).to_have_text("Nothing to compare yet")
        await goto(page, "ask")
        await ask(page)
        await goto(page, "overlap")
        cells = page.locator(".matrix tbody tr", has=page.locator("th", has_text="code")).locator("td")
        await expect(cells).to_have_text(["5", "2", "2"])
        shares = await page.locator("[aria-label='Share of the final hits'] td:nth-child(3)").all_inner_texts()
        assert sum(float(share.split()[0]) for share in shares) in range(98, 103)


async def test_settings_and_who_may_see_what() -> None:
    """Settings say where they are from and can be searched; tenants show what they see and no secret."""
    tenants = {
        "ops": tenant("*", keys=(ADMIN_KEY,), roles=["read", "admin"]),
        "team": tenant("docs", "c*", keys=("team-key",), limits={"rps": 5}),
    }
    settings = {"fusion": {"rrf_k": 30}}
    async with staged(settings=settings, tenants=tenants) as stage, browsing(stage.url) as (page, complaints):
        await page.fill("#key", ADMIN_KEY)
        complaints.expect("401")
        await page.click("text=Open")
        await page.click("nav >> text=Tenants")
        team = page.locator("tr", has=page.locator("th", has_text="team"))
        await expect(team).to_contain_text("code, docs")
        await expect(team).to_contain_text("rps 5")
        await expect(team).to_contain_text("k0")
        assert "sha256" not in await page.content()
        await page.check("#changed")
        await expect(page.locator("[aria-label=Settings] tbody tr", has_text="fusion.rrf_k")).to_contain_text("file")
        await page.fill("#wanted", "no such setting")
        await expect(page.locator("[aria-label=Settings] tbody")).to_have_text("No setting is called so.")


async def test_a_key_is_asked_for_once_and_kept_in_the_tab_alone() -> None:
    """Without a key nothing is shown; a wrong one or one without the role is said so; a right one outlives a reload."""
    tenants = {
        "ops": tenant("docs", "code", keys=(ADMIN_KEY,), roles=["read", "admin"]),
        "team": tenant("docs", keys=("team-key",)),
    }
    async with staged(tenants=tenants) as stage, browsing(stage.url) as (page, complaints):
        await expect(page.locator("h1")).to_have_text("A key is needed")
        await page.fill("#key", "wrong")
        await page.click("text=Open")
        await expect(page.locator("[role=alert]")).to_have_text("That key was not accepted.")
        await page.fill("#key", "team-key")
        await page.click("text=Open")
        await expect(page.locator("h1")).to_have_text("Not allowed")
        complaints.expect("401", "403")
        await page.fill("#key", ADMIN_KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator("#who")).to_contain_text("ops")
        await page.reload()
        await ask(page)
        await expect(page.locator(".waterfall")).not_to_contain_text("wiki")
        kept = await page.evaluate("[localStorage.length, document.cookie, Object.keys(sessionStorage).join()]")
        assert kept == [0, "", "rcp-console-key"]
        assert ADMIN_KEY not in page.url
        await page.click("#forget")
        await expect(page.locator("h1")).to_have_text("A key is needed")
        complaints.expect("401")


async def test_learned_calibration_is_shown_and_reset() -> None:
    """What an engine claimed, what it is worth, on how many rewards; the operator can start it anew."""
    async with staged(settings={"fusion": {"learning": "on"}}) as stage, browsing(stage.url) as (page, _):
        learning = stage.state.pages.learning
        claim: Any = ("docs", "confident", (1.0, 0.5))
        learning.learn(Event("", "somebody"), [[(1, 1.0, [claim]), (2, None, [claim])]])
        await goto(page, "engines?id=docs")
        card = page.locator("section[aria-label='Engine docs']")
        await expect(card).to_contain_text("Learned calibration")
        await expect(card.locator("table", has_text="Rewards").locator("tbody tr")).to_contain_text("1.0")
        await page.click("text=Reset calibration")
        await expect(card).not_to_contain_text("Learned calibration")
