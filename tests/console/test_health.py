"""The state of the federation in a real browser: what is wrong, since when, and what an operator does about it."""

import re
from typing import Any

import pytest
from playwright.async_api import expect
from pydantic import ValidationError

from app.settings.operators import AdminSettings
from tests.console.test_views import goto, row
from tests.support.browser import browsing
from tests.support.console_stage import staged, usual
from tests.support.running_gateway import RunningGateway, http_client, until
from tests.support.scripted_engine import RpcFault
from tests.support.shared_state import unique
from tests.support.tenancy import result

VIEWS = ["federation", "ask", "explain", "engines", "overlap", "sources", "savings", "settings"]


def slow(state: Any, engine: str, seconds: float = 1.9) -> None:
    """Ten calls of an engine that took this long."""
    for _ in range(10):
        state.instrumentation.windows.ended(engine, seconds)


async def down(stage: Any, engine: str) -> None:
    """Let an engine be gone, and wait until the gateway has noticed."""
    await stage.engines[engine].stop()
    (remote,) = [one for one in stage.state.engines.engines if one.id == engine]
    await until(lambda: not remote.up)


BEYOND = """
    [...document.querySelectorAll('main *')]
      .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))
      .map(one => one.outerHTML.slice(0, 80))
"""
"""What is beyond the right edge of the screen, and in nothing that scrolls."""

QUICK = {"engines": {"health_interval_seconds": 1.0}}
TIMEOUTS = {name: {"timeoutMs": 2000} for name in ("docs", "code", "wiki")}


async def test_every_view_says_what_is_wrong_and_leads_there() -> None:
    """In words and colour, with a link to the engine; the landing page lists the trouble, worst first."""
    async with staged(settings=QUICK, entries=TIMEOUTS) as stage, browsing(stage.url) as (page, _):
        health = page.locator("#health")
        await expect(health).to_have_text("3 up")
        await expect(page.locator("h1")).to_have_text("Federation")
        slow(stage.state, "docs")
        await down(stage, "wiki")
        await expect(health).to_have_text("1 down · 1 slow · 1 up")
        for view in VIEWS:
            await goto(page, view)
            await expect(health.locator("a.bad")).to_have_text("1 down")
            await expect(health.locator("a.warn")).to_have_text("1 slow")
        await goto(page, "federation")
        trouble = page.locator(".trouble li")
        await expect(trouble).to_have_count(2)
        await expect(trouble.nth(0)).to_contain_text("wiki")
        await expect(trouble.nth(0)).to_contain_text("connect:")
        await expect(trouble.nth(0)).to_contain_text(re.compile(r"for (a moment|\d+ s)"))
        await expect(trouble.nth(0)).to_contain_text(stage.engines["wiki"].url)
        await expect(trouble.nth(1)).to_contain_text("near the timeout of 2000 ms")
        width = await trouble.nth(1).locator(".share i").evaluate("bar => bar.style.width")
        assert float(width.rstrip("%")) >= 90
        await page.click("#trouble-wiki")
        await expect(page.locator("#engine")).to_contain_text("wiki")


async def test_an_engine_far_above_its_own_hour_is_slow() -> None:
    async with staged(entries={"docs": {"timeoutMs": 60_000}}) as stage, browsing(stage.url) as (page, _):
        windows = stage.state.instrumentation.windows
        clock = windows.clock
        windows.clock = lambda: clock() - 1800
        for _ in range(60):
            windows.ended("docs", 0.05)
        windows.clock = clock
        slow(stage.state, "docs", 0.4)
        await expect(page.locator("[data-trouble=docs]")).to_contain_text("times that of the hour before")


async def test_a_question_is_asked_from_the_landing_page() -> None:
    async with staged() as stage, browsing(stage.url) as (page, _):
        await page.fill("#query", "sort a list")
        await page.click("#ask")
        await expect(page.locator(".hit h3").first).to_be_visible()
        assert "#/ask?q=sort+a+list" in page.url


async def test_switching_off_is_confirmed_and_undone_with_the_keyboard() -> None:
    """The question names whom it concerns; Escape changes nothing; focus stays with the switch; Undo works."""
    async with staged() as stage, browsing(f"{stage.url}/#/engines?id=wiki") as (page, _):
        await page.locator("#act-off").focus()
        await page.keyboard.press("Enter")
        dialog = page.locator("dialog")
        await expect(dialog).to_contain_text("this process only")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        assert not stage.state.engines.switched_off
        await expect(page.locator("#act-off")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#confirm-off")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(row(page, "wiki")).to_contain_text("off")
        await expect(page.locator("#act-on")).to_be_focused()
        await expect(page.locator("#health")).to_have_text("1 switched off · 2 up")
        await page.locator("#undo").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#act-off")).to_be_focused()
        assert not stage.state.engines.switched_off


async def test_with_a_shared_state_a_switch_holds_for_all_processes(redis_url: str) -> None:
    """Also for one that starts later; during an outage of Redis nothing is switched back."""
    settings = {"state": {"url": redis_url, "prefix": unique()}}
    async with (
        staged(settings=settings) as one,
        staged(settings=settings, engines=usual()) as two,
        browsing(f"{one.url}/#/engines?id=wiki") as (page, _),
    ):
        await page.click("#act-off")
        await expect(page.locator("dialog")).to_contain_text("all processes that share the state")
        await page.click("#confirm-off")
        await until(lambda: "wiki" in two.state.engines.switched_off)
        async with staged(settings=settings, engines=usual()) as late:
            await until(lambda: "wiki" in late.state.engines.switched_off)
        await page.click("#undo")
        await until(lambda: not two.state.engines.switched_off)


async def test_when_the_gateway_is_gone_the_page_dims_and_says_how_old_it_is() -> None:
    async with staged() as stage, browsing(stage.url) as (page, complaints):
        await expect(page.locator("#health")).to_have_text("3 up")
        await page.context.set_offline(True)
        await expect(page.locator("#gone")).to_contain_text("The gateway cannot be reached. What you see is")
        assert float(await page.locator("main").evaluate("main => getComputedStyle(main).opacity")) < 0.6
        await page.context.set_offline(False)
        await expect(page.locator("#gone")).to_be_hidden()
        assert await page.locator("main").evaluate("main => getComputedStyle(main).opacity") == "1"
        complaints.expect("ERR_INTERNET_DISCONNECTED")


async def test_a_phone_shows_two_lines_for_each_engine() -> None:
    """At 390 px nothing is beyond the edge of the screen, in no view."""
    async with staged() as stage, browsing(f"{stage.url}/#/engines", width=390) as (page, _):
        lines = row(page, "docs")
        await expect(lines).to_contain_text("docs")
        tops = await lines.evaluate(
            "row => [...new Set([...row.children].filter(cell => cell.offsetWidth && cell.offsetParent)"
            ".map(cell => cell.getBoundingClientRect().top > row.getBoundingClientRect().top + 20))].length"
        )
        assert tops == 2
        for view in VIEWS:
            await goto(page, view)
            await expect(page.locator("h1")).to_be_attached()
            beyond = await page.evaluate(BEYOND)
            assert beyond == []


async def test_charts_have_axes_and_one_scale() -> None:
    """The lines of all engines are drawn to the same scale, which the heading names; the chart of one has axes."""
    async with staged() as stage, browsing(f"{stage.url}/#/engines?id=docs") as (page, _):
        slow(stage.state, "docs", 0.15)
        slow(stage.state, "code", 0.01)
        await expect(page.locator("[aria-label=Engines] thead th").last).to_have_text("Last minutes, 0 to 200 ms")
        await expect(page.locator(".axes .y span")).to_have_text(["200 ms", "100 ms", "0.0 ms"])
        await expect(page.locator(".axes .x span")).to_have_text(["−5 min", "−2.5 min", "now"])
        high = await row(page, "docs").locator("svg .p95").get_attribute("d")
        low = await row(page, "code").locator("svg .p95").get_attribute("d")
        assert high is not None
        assert low is not None
        assert float(high.split()[1].split("L")[0]) < float(low.split()[1].split("L")[0])


async def test_the_incident_summary_can_be_copied() -> None:
    """What is down since when, which answers were partial, and their request ids, as plain text."""
    async with (
        staged(settings=QUICK) as stage,
        browsing(stage.url, permissions=["clipboard-read", "clipboard-write"]) as (
            page,
            _,
        ),
    ):
        stage.engines["code"].answers["retrieve"] = RpcFault(-32603)
        async with http_client(stage.url) as http:
            answer = await result(RunningGateway(stage.state, http), None, "retrieve", {"query": "q"})
        assert answer["_meta"]["degraded"] == ["code"]
        await down(stage, "wiki")
        await expect(page.locator("[aria-label='Partial answers'] tbody tr")).to_have_count(1)
        await expect(page.locator("[data-trouble=wiki]")).to_be_visible()
        await page.click("#incident")
        await expect(page.locator("#said")).to_contain_text("copied")
        text = await page.evaluate("navigator.clipboard.readText()")
    (partial,) = stage.state.partial_answers
    assert f"- {partial.request_id} " in text
    assert "retrieve without code" in text
    assert re.search(r"- wiki: down since \d{4}-\d\d-\d\dT[\d:]+Z \(connect:", text)


async def test_links_lead_where_the_settings_say() -> None:
    admin = {
        "dashboard_url": "https://grafana.example/d/rcp",
        "runbook_url": "https://wiki.example/rcp",
        "logs_url": "https://logs.example/?q={request_id}",
    }
    async with staged(settings={"admin": admin}) as stage, browsing(stage.url) as (page, _):
        links = page.locator("[aria-label=Trouble] .bar-head a")
        await expect(links).to_have_text(["Dashboard", "Runbook", "Logs"])
        assert await links.nth(0).get_attribute("href") == admin["dashboard_url"]
        assert await links.nth(0).get_attribute("rel") == "noopener noreferrer"


async def test_sources_and_shadows_have_a_view() -> None:
    entries = {"wiki": {"shadow": {"share": 1.0}}}
    async with staged(entries=entries) as stage, browsing(f"{stage.url}/#/sources") as (page, _):
        await expect(page.locator("section[aria-label='Engine sources']")).to_contain_text("from the registry file")
        shadows = page.locator("section[aria-label='Shadow engines']")
        await expect(shadows.locator("tbody tr")).to_contain_text("wiki")
        await expect(shadows).to_contain_text("too few")
        await expect(page.locator("#health")).to_have_text("2 up")


async def test_selection_and_cache_have_a_view() -> None:
    settings = {"cache": {"enabled": True}, "select": {"mode": "report"}}
    async with staged(settings=settings) as stage, browsing(f"{stage.url}/#/savings") as (page, _):
        cache = page.locator("[aria-label='Answer cache']")
        await expect(cache).to_contain_text("Without engine calls")
        await expect(page.locator("[aria-label='Engine selection']").first).to_contain_text("report")
        await page.click("#purge")
        await expect(page.locator("#said")).to_contain_text("cached answers are forgotten")


@pytest.mark.parametrize("url", ["ftp://x", "https://user:secret@x.example"])
def test_a_link_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        AdminSettings(logs_url=url)
    assert "secret" not in str(refused.value.errors()[0]["msg"])
