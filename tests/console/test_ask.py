"""The console's first view in a real browser: asking, answers as they come, fusing once more, links, hostile text."""

import asyncio
import json
import subprocess
import sys
from typing import Any
from urllib.parse import quote

from playwright.async_api import Page, expect

from tests.support.browser import browsing
from tests.support.console_stage import OFFER, broken, held, staged, told, usual
from tests.support.running_gateway import Json
from tests.support.scripted_engine import ScriptedEngine, hang

HOSTILE = {
    "script": "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">",
    "override": "begin \u202egnirts desrever",
    "marks": "z" + "\u0301" * 10_000 + " end",
    "ansi": "\x1b[31mred\x1b[0m \x07 bell",
}


DRAWN = "new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
"""Ends when the page has drawn what it has received."""


async def ask(page: Page, query: str = "sort a list") -> None:
    """Ask through the form and wait until the answer stands."""
    await page.fill("#query", query)
    await page.click("#ask")
    await expect(page.locator("[aria-label=Request]")).to_have_attribute("aria-busy", "false")


async def titles(page: Page) -> list[str]:
    """The hits as they stand, best first."""
    return await page.locator(".hit h3").all_inner_texts()


def row(page: Page, engine: str) -> Any:
    """The line of one engine in the waterfall."""
    return page.locator(".waterfall li", has=page.locator(f".name[title='{engine}']"))


async def test_an_answer_and_where_it_is_from() -> None:
    """Hits stand in the gateway's order with their parts; the waterfall names who answered, who failed and who hung."""
    engines = usual()
    engines["sick"] = ScriptedEngine()
    engines["sick"].answers["retrieve"] = broken()
    engines["mute"] = ScriptedEngine()
    engines["mute"].answers["retrieve"] = hang
    async with (
        staged(engines, entries={"mute": {"timeoutMs": 300}, "sick": {"retries": 0}}) as stage,
        browsing(f"{stage.url}/#/ask") as (page, _),
    ):
        await expect(page.locator(".state h2")).to_have_text("Ask the whole federation")
        await ask(page)
        first = page.locator(".hit").first
        await expect(first.locator("h3")).to_have_text("sorted")
        assert set(await titles(page)) >= {"list.sort", "radix", "natsort"}
        await expect(first.locator(".parts li")).to_have_count(3)
        parts = " ".join(await first.locator(".parts li").all_inner_texts())
        assert "docs · rank 1 · confidence 0.96" in parts
        widths = await first.locator(".stack i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
        assert round(sum(widths)) == 100
        await expect(first.locator("mark")).to_have_text(["sort", "list", "sort"])
        await expect(row(page, "docs")).to_contain_text("5 hits")
        await expect(row(page, "sick")).to_contain_text("refused")
        await expect(row(page, "mute")).to_contain_text("timeout")
        for name in ("wait", "fuse", "overhead"):
            await expect(row(page, name)).to_contain_text("ms")
        await expect(page.locator(".fault-line")).to_contain_text("Without mute, sick")


async def test_hits_settle_as_engines_answer() -> None:
    """What the first engine gave is there before the second has answered, which then takes its place."""
    engines, go = usual(), asyncio.Event()
    engines["code"].answers["retrieve"] = held(go, {"hits": told("sortedcontainers", "list.sort")})
    engines["wiki"].answers["retrieve"] = held(go, {"hits": told("sortedcontainers")})
    async with staged(engines) as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await page.fill("#query", "sort")
        await page.click("#ask")
        await expect(page.locator(".hit h3").first).to_have_text("sorted")
        await expect(row(page, "docs")).to_contain_text("answered")
        await expect(row(page, "code")).to_contain_text("asked…")
        await expect(page.locator("[aria-label=Request]")).to_have_attribute("aria-busy", "true")
        assert "sortedcontainers" not in await titles(page)
        go.set()
        await expect(page.locator("[aria-label=Request]")).to_have_attribute("aria-busy", "false")
        await expect(page.locator(".hit h3").first).to_have_text("sortedcontainers")


async def test_weights_move_hits_without_asking_again() -> None:
    """Moving a weight fuses the lists that are there; hits say where they went; and all can be taken back."""
    async with staged() as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await ask(page)
        before = await titles(page)
        questions = [len(engine.requests()) for engine in stage.engines.values()]
        for engine, weight in (("wiki", "5"), ("docs", "0")):
            async with page.expect_response("**/admin/fuse"):
                await page.locator(f"#weight-{engine}").fill(weight)
            await page.evaluate(DRAWN)
        await expect(page.locator(".hit h3").first).to_have_text("radix")
        await expect(page.locator(".hit").first.locator(".moved")).to_contain_text("▲")
        await expect(page.locator(".moved.down")).not_to_have_count(0)
        assert [len(engine.requests()) for engine in stage.engines.values()] == questions
        await expect(page.locator(".refused")).to_contain_text("without calling engines")
        moved = await titles(page)
        await page.click("#ask")
        await expect(page.locator(".refused")).to_have_count(0)
        await expect(page.locator("[aria-label=Request]")).to_have_attribute("aria-busy", "false")
        assert await titles(page) == moved, "asking with these weights gives what was shown"
        await page.locator("#weight-wiki").fill("0")
        await expect(page.locator(".hit h3").first).not_to_have_text("radix")
        await page.click("#undo")
        await expect(page.locator(".refused")).to_have_count(0)
        await expect(page.locator("#weight-wiki")).to_have_value("5")
        assert await titles(page) == moved
        assert before != moved


async def test_the_form_says_what_is_asked() -> None:
    """Conditions, mode, k and chosen engines reach the engines; who cannot filter is not asked, and it is said why."""
    async with staged() as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await page.fill("#k", "3")
        await page.select_option("#mode", "sparse")
        await page.click("summary:has-text('Filter')")
        await page.click("#add-condition")
        await page.select_option("#field-0", "year")
        await page.select_option("#op-0", "gte")
        await page.fill("#value-0", "2020")
        await page.click("#add-condition")
        await page.select_option("#field-1", "reviewed")
        await ask(page)
        params = stage.docs.requests()[-1].params
        assert params["mode"] == "sparse"
        assert params["filter"] == {
            "and": [
                {"field": "year", "op": "gte", "value": 2020},
                {"field": "reviewed", "op": "eq", "value": True},
            ]
        }
        assert len(await titles(page)) == 3
        await expect(page.locator(".waterfall")).to_contain_text("wiki: filter")
        await page.click("summary:has-text('Engines')")
        await page.uncheck("label:has-text('docs') >> input[type=checkbox]")
        await page.click("#ask")
        await expect(page.locator(".waterfall")).to_contain_text("docs: not_selected")


async def test_a_permalink_holds_the_question_and_no_answer() -> None:
    """Whoever opens a link finds the form as it was, and nothing is asked until they ask."""
    async with staged() as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await page.fill("#k", "4")
        await ask(page, "stable sort & more")
        await page.locator("#weight-code").fill("2.5")
        link = page.url
        assert "stable+sort+%26+more" in link
        assert "list.sort" not in link
        questions = len(stage.docs.requests())
        async with browsing(link) as (other, _):
            await expect(other.locator("#query")).to_have_value("stable sort & more")
            await expect(other.locator("#k")).to_have_value("4")
            await expect(other.locator("#weight-code")).to_have_value("2.5")
            assert len(stage.docs.requests()) == questions
            await other.click("#ask")
            await expect(other.locator(".hit").first).to_be_visible()
        assert len(stage.docs.requests()) == questions + 1


async def test_a_permalink_written_by_hand_may_hold_anything() -> None:
    """A condition whose value is a number, a list or missing is one of the form, and reaches the engines."""
    conditions = [
        {"field": "year", "op": "gte", "value": 2020},
        {"field": "lang", "op": "in", "value": ["en", "de"]},
        {"field": "lang"},
        {"field": 7},
        None,
    ]
    async with (
        staged() as stage,
        browsing(f"{stage.url}/#/ask?q=x&filter={quote(json.dumps(conditions))}") as (page, _),
    ):
        await expect(page.locator("#value-0")).to_have_value("2020")
        await ask(page)
    assert stage.docs.requests()[-1].params["filter"] == {
        "and": [
            {"field": "year", "op": "gte", "value": 2020},
            {"field": "lang", "op": "in", "value": ["en", "de"]},
            {"field": "lang", "op": "eq", "value": ""},
        ]
    }


async def test_weights_move_the_longest_lists() -> None:
    """Lists that are longer than a caller may send are fused once more all the same, as from fifty engines."""
    settings: Json = {"server": {"max_body_bytes": 1024}}
    async with staged(settings=settings) as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await ask(page)
        await page.locator("#weight-wiki").fill("5")
        await expect(page.locator(".refused")).to_contain_text("without calling engines")
        await expect(page.locator(".hit h3").first).to_have_text("radix")
    assert stage.docs.asked


async def test_what_is_copied_runs() -> None:
    """As curl and as Python the question can be pasted and gives the same hits; as MCP it is a tool call."""
    copied: list[str] = []
    async with (
        staged() as stage,
        browsing(f"{stage.url}/#/ask", permissions=["clipboard-read", "clipboard-write"]) as (page, _),
    ):
        await ask(page, 'it\'s "quoted" $HOME')
        expected = [await hit.get_attribute("data-id") for hit in await page.locator(".hit").all()]
        for name in ("curl", "Python", "MCP call"):
            await page.click(f"[id='copy-{name}']")
            await expect(page.locator("#said")).to_have_text(f"Copied as {name}.")
            copied.append(await page.evaluate("navigator.clipboard.readText()"))
        curl, python, mcp = copied
        run = await asyncio.to_thread(subprocess.run, ["sh", "-c", curl], capture_output=True, timeout=60, check=True)
        assert [hit["id"] for hit in json.loads(run.stdout)["result"]["hits"]] == expected
        run = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", python], capture_output=True, timeout=60, check=True
        )
        assert [line.split()[1] for line in run.stdout.decode().splitlines()] == expected
        assert [request.params["query"] for request in stage.docs.requests()] == ['it\'s "quoted" $HOME'] * 3
        assert json.loads(mcp)["params"] == {
            "name": "retrieve",
            "arguments": {"query": 'it\'s "quoted" $HOME', "k": 10},
        }


async def test_hostile_and_huge_hits_are_text() -> None:
    """Markup, overrides, piles of marks and escapes are shown and do nothing; 100 KB are there on demand, in part."""
    results = [
        {
            "id": name,
            "score": 5 - place,
            "text": text,
            "citation": {"title": text, "uri": text},
            "trust": {"level": text},
        }
        for place, (name, text) in enumerate(HOSTILE.items())
    ]
    results.append({"id": "huge", "score": 0.5, "text": "needle " + "long words " * 10_000})
    engine = ScriptedEngine(capabilities=OFFER, results=results)
    async with staged({"docs": engine}) as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await ask(page, "needle")
        await expect(page).to_have_title("Ask – rcp-gateway console")
        await expect(page.locator("main script, main img")).to_have_count(0)

        def hit(name: str) -> Any:
            return page.locator(f".hit[data-id='{name}']")

        await expect(hit("script").locator(".snippet")).to_contain_text("<script>document.title='taken'</script>")
        await expect(hit("override").locator(".snippet")).to_have_text("begin ⟨RLO⟩gnirts desrever")
        await expect(hit("marks").locator("h3")).to_contain_text("⟨+")
        await expect(hit("ansi").locator(".snippet")).to_contain_text("␛[31mred␛[0m ␇ bell")
        for name in HOSTILE:
            box = await hit(name).bounding_box()
            assert box is not None
            assert box["height"] < 400
        await expect(hit("huge").locator("mark")).to_have_text("needle")
        await hit("huge").locator("summary").click()
        await expect(hit("huge").locator(".full")).to_contain_text("more characters")
        assert len(await hit("huge").locator(".full").inner_text()) < 21_000


async def test_each_hit_says_how_far_it_is_trusted() -> None:
    """The level of trust stands at each hit, also where nobody states one, and who is suspected is marked."""
    levels: list[Json | None] = [{"level": "trusted"}, {"level": "untrusted", "injectionSuspected": True}, None]
    hits = [{"id": str(place), "score": 3 - place, "trust": trust} for place, trust in enumerate(levels)]
    async with staged({"docs": ScriptedEngine(results=hits)}) as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await ask(page)
        told = [await hit.locator(".meta .chip").all_inner_texts() for hit in await page.locator(".hit").all()]
    assert told == [["trusted"], ["untrusted", "injection suspected"], ["no trust stated"]]


async def test_no_hits_and_no_answer_are_said() -> None:
    """An empty answer says so; where nobody answered the error and every engine's reason is shown."""
    engines = {"docs": ScriptedEngine(results=[])}
    async with staged(engines, entries={"docs": {"retries": 0}}) as stage, browsing(f"{stage.url}/#/ask") as (page, _):
        await ask(page)
        await expect(page.locator(".state h2")).to_have_text("No hits")
        stage.docs.answers["retrieve"] = broken()
        await ask(page)
        await expect(page.locator("[role=alert]")).to_contain_text("no engine answered")
        await expect(page.locator("[role=alert]")).to_contain_text("docs: refused")
        await expect(page.locator("[role=alert]")).to_contain_text("-32010")
