"""The report of an answer where many engines were asked: its forms, merged notes, and the line in the log."""

from typing import Any

import pytest

from tests.support.log_lines import own_log
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import RpcFault, hit


async def entries_of(engines: Any, failing: int, giving: int, empty: int = 0) -> list[dict[str, Any]]:
    """Registry entries of engines that fail, that give one hit each, and that give none."""
    made = []
    for number in range(failing + giving + empty):
        engine = await engines()
        if number < failing:
            engine.answers["retrieve"] = RpcFault(-32010, f"index {number} is down")
        else:
            engine.answers["retrieve"] = {"hits": [hit(f"h{number}", 0.5)] if number < failing + giving else []}
        made.append(entry(f"e{number:02}", engine, retries=0))
    return made


def ids(result: dict[str, Any]) -> list[str]:
    """The engines that the report lists."""
    return [engine["id"] for engine in result["_meta"]["x-gateway"]["engines"]]


async def test_the_report_has_three_forms(engines: Any) -> None:
    """`full` lists all, `brief` those that failed or gave a hit and counts all, `none` nobody; `degraded` stays."""
    async with running(await entries_of(engines, failing=1, giving=2, empty=3)) as gateway:
        forms = {form: await gateway.retrieve(**{"x-gateway": {"report": form}}) for form in ("full", "brief", "none")}
        by_default = await gateway.retrieve()
    assert ids(forms["full"]) == ids(by_default) == [f"e{number:02}" for number in range(6)]
    assert ids(forms["brief"]) == ["e00", "e01", "e02"]
    counts = forms["brief"]["_meta"]["x-gateway"]["counts"]
    assert counts == {"status": {"failed": 1, "ok": 5}, "reason": {"refused": 1}}
    assert forms["none"]["_meta"]["x-gateway"].keys() == {"id", "fusion"}
    for result in forms.values():
        assert result["_meta"]["degraded"] == ["e00"]
        assert len(result["hits"]) == 2


async def test_the_operator_sets_the_form(engines: Any) -> None:
    """A request that says nothing gets what `retrieve.report` says; one that chooses gets what it wants."""
    entries = await entries_of(engines, failing=0, giving=1, empty=1)
    async with running(entries, {"retrieve": {"report": "brief"}}) as gateway:
        assert ids(await gateway.retrieve()) == ["e00"]
        assert ids(await gateway.retrieve(**{"x-gateway": {"report": "full"}})) == ["e00", "e01"]


async def test_a_page_may_have_another_form(engines: Any) -> None:
    """The form is no part of what a cursor belongs to."""
    engine = await engines()
    engine.answers["retrieve"] = {"hits": [hit(f"h{number}", 1 - number / 100) for number in range(20)]}
    async with running([entry("e", engine)]) as gateway:
        first = await gateway.retrieve(k=5, **{"x-gateway": {"report": "none"}})
        second = await gateway.retrieve(k=5, cursor=first["nextCursor"])
    assert len(second["hits"]) == 5
    assert "engines" in second["_meta"]["x-gateway"]


@pytest.mark.parametrize("form", ["short", 1, ["brief"]])
async def test_other_forms_are_refused(engines: Any, form: Any) -> None:
    """-32602 names the field."""
    async with running([entry("e", await engines())]) as gateway:
        error = await gateway.error("retrieve", {"query": "q", "x-gateway": {"report": form}})
    assert (error["code"], error["data"]["field"]) == (-32602, "x-gateway.report")


async def test_notes_of_one_kind_are_one(engines: Any) -> None:
    """From the fourth engine on; three engines have a note each."""
    async with running(await entries_of(engines, failing=4, giving=1)) as gateway:
        notes = (await gateway.retrieve())["usage"]["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("4 engines: such as e00: refused after ")
    async with running(await entries_of(engines, failing=3, giving=1)) as gateway:
        notes = (await gateway.retrieve())["usage"]["notes"]
    assert [note[:4] for note in notes] == ["e00:", "e01:", "e02:"]


async def test_options_left_out_are_one_note(engines: Any) -> None:
    """The plan's notes about engines are merged as well."""
    async with running(await entries_of(engines, failing=0, giving=5)) as gateway:
        notes = (await gateway.retrieve(includeVectors=True, strict=False))["usage"]["notes"]
    assert [note for note in notes if note.startswith("5 engines: asked without 'includeVectors'")], notes
    assert not [note for note in notes if note.startswith("e0")]


async def test_an_error_of_many_engines_is_short(engines: Any) -> None:
    """Nobody answered: five failures of one kind are one note in the error, too."""
    async with running(await entries_of(engines, failing=5, giving=0)) as gateway:
        error = await gateway.error("retrieve", {"query": "q"})
    assert error["code"] == -32010
    assert len(error["data"]["notes"]) == 1
    assert error["data"]["notes"][0].startswith("5 engines: such as e00: refused")


@pytest.mark.parametrize("report", ["full", "none"])
async def test_the_log_counts_engines_above_twenty(engines: Any, report: str) -> None:
    """Whatever form the caller wants: names of up to 20 engines, numbers of more."""
    with own_log() as log:
        for giving in (17, 18):
            async with running(await entries_of(engines, failing=3, giving=giving)) as gateway:
                await gateway.retrieve(**{"x-gateway": {"report": report}})
    few, many = [line for line in log.lines if line["event"] == "request"]
    assert (len(few["asked"]), few["answered"], len(few["failed"])) == (20, 17, 3)
    assert (many["asked"], many["answered"], many["failed"]) == (21, 18, {"refused": 3})
