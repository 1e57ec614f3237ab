"""The console for everybody: nothing serious for axe, both widths and themes, keyboard alone, no gateway."""

import pytest
from playwright.async_api import expect

from tests.console.test_ask import ask
from tests.support.axe import barriers
from tests.support.browser import browsing
from tests.support.console_stage import staged
from tests.support.pictures import engines

VIEWS = {
    "explain": "section[aria-label='Last answer']",
    "engines?id=code": "#engine",
    "overlap": ".matrix",
    "sources": "section[aria-label='Shadow engines']",
    "savings": "[aria-label='Answer cache'] .facts",
    "federation": "[aria-label=Trouble]",
    "settings": "#wanted",
}


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)])
async def test_every_view_can_be_used_by_everybody(width: int, dark: bool) -> None:
    """Axe finds nothing serious in any view, and no view is wider than the screen."""
    async with (
        staged(engines(), {"admin": {"drills": True}, "cache": {"enabled": True}}) as stage,
        browsing(stage.url, width=width, dark=dark) as (page, _),
    ):
        await expect(page.locator("#query")).to_be_visible()
        assert await barriers(page) == []
        await ask(page)
        assert await barriers(page) == []
        if not await page.locator("#blend").evaluate("blend => blend.open"):
            await page.click("#blend summary")
        await page.locator("#weight-wiki").fill("4")
        await expect(page.locator(".refused")).to_be_visible()
        for place, (view, sign) in enumerate(VIEWS.items()):
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"before view {place}"
            await page.evaluate(f"location.hash = '#/{view}'" + ("+ '?q=sort+a+list'" if view == "explain" else ""))
            await expect(page.locator(sign)).to_be_visible()
            assert await barriers(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_keyboard_is_enough() -> None:
    """The first Tab leads to the content; a question is asked, a weight moved and a view opened without a mouse."""
    async with staged() as stage, browsing(stage.url) as (page, _):
        await expect(page.locator("#query")).to_be_focused()  # the landing page has the question at hand
        await page.keyboard.type("sort")
        await page.keyboard.press("Enter")
        await expect(page.locator(".hit .stack").first).to_be_visible()
        await page.locator("#weight-wiki").focus()
        for _ in range(40):
            await page.keyboard.press("ArrowRight")
        await expect(page.locator(".hit h3").first).to_have_text("radix")
        await expect(page.locator("#weight-wiki")).to_be_focused()
        await page.locator("nav a", has_text="Engines").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("nav a[aria-current=page]")).to_have_text("Engines")
        await page.locator("#engine-code").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#engine")).to_be_visible()
        await page.reload()
        await expect(page.locator("#engine")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.locator(".skip")).to_be_focused()


async def test_a_gateway_that_is_gone() -> None:
    """A page whose gateway has ended says so, and offers to try again."""
    async with staged() as stage, browsing(stage.url) as (page, complaints):
        await expect(page.locator("#query")).to_be_visible()
        await page.context.set_offline(True)
        await page.click("nav >> text=Tenants")
        await expect(page.locator("[role=alert]")).to_contain_text("The gateway cannot be reached.")
        await page.context.set_offline(False)
        await page.click("text=Try again")
        await expect(page.locator("h1")).to_have_text("Tenants and settings")
        complaints.expect("ERR_INTERNET_DISCONNECTED")
