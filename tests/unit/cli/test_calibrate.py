"""Learning from files, applying what was learned to lists, and giving it to a gateway."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.__main__ import load


def ran(*arguments: Any, lines: Any = ()) -> Result:
    """The command, given these lines."""
    given = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return CliRunner().invoke(load(), [str(argument) for argument in arguments], input=given)


def query(qid: int, *, confident: bool) -> dict[str, Any]:
    """One query: a sound engine with small claims, and a worthless one with large ones."""
    chance = random.Random(qid)
    engines: dict[str, Any] = {}
    for engine, claim, level in (("sound", 0.3, 9.0), ("void", 0.9, 0.9)):
        hits = [
            {"id": f"{engine}{qid}-{place}", "score": level - level * place / 20 + chance.random() / 100}
            for place in range(8)
        ]
        if confident:
            hits = [{**hit, "confidence": round(claim - place / 50, 3)} for place, hit in enumerate(hits)]
        engines[engine] = {"hits": hits, "fetchK": 8}
    return {"qid": f"q{qid}", "engines": engines}


def judged(count: int) -> dict[str, list[str]]:
    """Nearly all of the sound engine's hits are relevant, and one of all those of the other."""
    found = {f"q{qid}": [f"sound{qid}-{place}" for place in range(6)] for qid in range(count)}
    found["q0"].append("void0-0")
    return found


@pytest.fixture
def qrels(tmp_path: Path) -> Path:
    """Judgements of twelve queries."""
    (tmp_path / "qrels.json").write_text(json.dumps(judged(12)), encoding="utf-8")
    return tmp_path / "qrels.json"


@pytest.mark.parametrize("confident", [True, False])
def test_judged_queries_make_maps_that_fuse_applies(qrels: Path, tmp_path: Path, confident: bool) -> None:
    """One map for each engine, as documented; with them the sound engine is believed."""
    lines = [query(qid, confident=confident) for qid in range(12)]
    result = ran("calibrate", "--qrels", qrels, lines=lines)
    assert result.exit_code == 0, result.output
    maps = json.loads(result.stdout)
    kind, width = ("confident", 2) if confident else ("silent", 4)
    assert sorted(maps) == ["sound", "void"]
    for one in maps.values():
        assert one["kind"] == kind
        assert len(one["theta"]) == width
    assert (maps["sound"]["n"], maps["void"]["n"]) == (72, 1)
    if not confident:
        assert maps["sound"]["mean"] == pytest.approx(7.43, abs=0.1)
        assert maps["sound"]["sd"] > maps["void"]["sd"] > 0
    (tmp_path / "maps.json").write_text(result.stdout, encoding="utf-8")
    before, after = (
        [hit["id"] for hit in json.loads(ran("fuse", *more, lines=lines[:1]).stdout)["hits"]]
        for more in ((), ("--calibration", tmp_path / "maps.json"))
    )
    worth = [sum(key.startswith("sound") for key in order[:8]) for order in (before, after)]
    assert worth[1] > worth[0]


def test_events_teach_in_their_order() -> None:
    """Signals on shown hits; an event without a signal teaches nothing, one caller counts less and less."""
    lines = []
    for qid in range(20):
        asked = query(qid, confident=True)
        shown = [
            hit["id"] for pair in zip(*(e["hits"] for e in asked["engines"].values()), strict=True) for hit in pair
        ]
        signals = [{"hitId": f"sound{qid}-0", "reward": 1.0}, {"hitId": "not shown", "reward": 1.0}]
        lines.append({"caller": "one", "engines": asked["engines"], "shown": shown[:10], "signals": signals})
    silent = {**lines[0], "signals": []}
    maps = json.loads(ran("calibrate", "--events", lines=lines).stdout)
    assert maps["sound"]["n"] == pytest.approx(10 + sum(10 / count for count in range(11, 21)))
    assert maps["void"]["n"] == 0
    callers = [{**line, "caller": f"c{place}"} for place, line in enumerate(lines)]
    assert json.loads(ran("calibrate", "--events", lines=callers).stdout)["sound"]["n"] == pytest.approx(20)
    assert json.loads(ran("calibrate", "--events", lines=[silent]).stdout) == {}


@pytest.mark.parametrize(
    ("arguments", "lines", "said"),
    [
        ((), (), "say what to learn from"),
        (("--events", "--load", "x"), (), "say what to learn from"),
        (("--events",), (b"{",), "line 1"),
        (("--events",), (b"[]",), "line 1: is no JSON object"),
        (("--events",), ({"engines": {}, "signals": []},), "line 1: 'shown' must be"),
        (("--events",), ({"engines": {}, "shown": [True], "signals": []},), "shown[0]"),
        (("--events",), ({"engines": 7, "shown": [], "signals": []},), "engines"),
        (("--events",), ({"engines": {}, "shown": [], "signals": [{"hitId": "a", "reward": 2}]},), "reward"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], lines: tuple[Any, ...], said: str) -> None:
    """The line and the field, and exit code 1."""
    result = ran("calibrate", *arguments, lines=lines)
    assert result.exit_code == 1
    assert said in result.output


def test_judgements_must_be_of_the_queries(qrels: Path) -> None:
    """Lines without a judged qid teach nothing, which is said."""
    result = ran("calibrate", "--qrels", qrels, lines=[{"qid": "other", "engines": {}}])
    assert result.exit_code == 1
    assert "judges none of the queries" in result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "no JSON object of maps"),
        ('{"a": 7}', "'a' must be an object"),
        ('{"a": {"kind": "x"}}', "a.kind"),
        ('{"a": {"kind": "confident", "theta": [1]}}', "a.theta"),
        ('{"a": {"kind": "confident", "theta": [1, 2], "n": -1}}', "a.n"),
        ('{"a": {"kind": "silent", "theta": [1, 2, 3, 1e999]}}', "a.theta"),
    ],
)
def test_faulty_maps_are_refused(tmp_path: Path, content: str, said: str) -> None:
    """What `fuse --calibration` cannot apply is said with the engine and the key."""
    (tmp_path / "maps.json").write_text(content, encoding="utf-8")
    result = ran("fuse", "--calibration", tmp_path / "maps.json", lines=[])
    assert result.exit_code == 1
    assert said in result.output


def test_maps_need_no_more_than_what_fusion_applies(tmp_path: Path) -> None:
    """`kind`, `theta` and `n` are enough; further keys are allowed."""
    maps = {"sound": {"kind": "confident", "theta": [8.0, 1.0], "n": 1000.0, "note": "by hand"}}
    (tmp_path / "maps.json").write_text(json.dumps(maps), encoding="utf-8")
    result = ran("fuse", "--calibration", tmp_path / "maps.json", lines=[query(0, confident=True)])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["hits"][0]["id"] == "sound0-0"


def test_fuse_reads_silent_lists_as_it_is_told() -> None:
    """`options.silent`: by their scores (default), or by ranks, which is plain RRF."""
    asked = query(0, confident=False)
    answers = {
        options: json.loads(ran("fuse", lines=[{**asked, "options": json.loads(options)}]).stdout)["hits"]
        for options in ("{}", '{"silent": "scores"}', '{"silent": "ranks"}', '{"confidenceWeight": 0}')
    }
    assert answers["{}"] == answers['{"silent": "scores"}'] != answers['{"silent": "ranks"}']
    assert answers['{"silent": "ranks"}'] == answers['{"confidenceWeight": 0}']
    assert "error" in json.loads(ran("fuse", lines=[{**asked, "options": {"silent": "loud"}}]).stdout)
