"""Tuning a gateway from the command line."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.judged_gateway import JudgedGateway, hits, listening, write_lines

pytest.importorskip("ir_measures", reason="its binary part is not built for this kind of machine")

Run = Callable[..., Result]
TEXTS = [f"text {number}" for number in range(16)]


@pytest.fixture
def gateway() -> Iterator[JudgedGateway]:
    """Two engines, of which `sound` is right each time; with equal weights the other one's document is first."""
    lists = {
        "junk": {text: hits("a-junk", "b-junk") for text in TEXTS},
        "sound": {text: hits("right", "z-junk") for text in TEXTS},
    }
    report = {
        "engines": [{"id": name, "weight": 1.0} for name in lists],
        "fusion": {"method": "rrf", "rrfK": 60, "confidenceWeight": 0.8},
    }
    with listening(JudgedGateway(lists, report=report)) as fake:
        yield fake


@pytest.fixture
def files(tmp_path: Path) -> list[Any]:
    """The options that name the files."""
    queries = write_lines(tmp_path / "q.jsonl", *({"qid": text, "query": text} for text in TEXTS))
    (tmp_path / "qrels.json").write_text(json.dumps({text: ["right"] for text in TEXTS}), encoding="utf-8")
    return ["--queries", queries, "--qrels", tmp_path / "qrels.json"]


def report(result: Result) -> dict[str, Any]:
    """The JSON of a run that went well."""
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def registry_of(folder: Path, **weights: float) -> Path:
    """A registry with these weights."""
    engines = [{"id": name, "url": "http://h/rcp", "weight": weight} for name, weight in weights.items()]
    (folder / "rcp.json").write_text(json.dumps({"engines": engines}), encoding="utf-8")
    return folder / "rcp.json"


def test_better_settings_are_found_and_proven(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Every engine is asked every query once for 50 hits; the right one gets more weight."""
    found = report(run("tune", "--url", gateway.url, "--json", *files))
    assert found["queries"] == {"judged": 16, "leftOut": 0, "incomplete": 0, "searched": 8, "heldOut": 8}
    assert found["verdict"] == "better"
    weights = {line["id"]: line["weight"] for line in found["registry"]}
    assert weights["sound"] > weights["junk"]
    assert found["heldOut"]["MRR"]["present"] == 0.5
    assert found["heldOut"]["MRR"]["found"] == 1.0
    assert found["heldOut"]["nDCG@10"]["p"] < 0.05
    assert set(found["calibration"]) <= {"junk", "sound"}
    assert set(found["calibrated"]) == set(found["heldOut"])
    alone = [params for params in gateway.asked if "x-gateway" in params]
    asked = [(params["x-gateway"]["engines"][0], params["query"], params["k"]) for params in alone]
    assert sorted(asked) == sorted((name, text, 50) for name in ("junk", "sound") for text in TEXTS)


def test_people_get_lines_to_paste(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """The table, the conclusion, the lines of both files; notes on stderr."""
    gateway.report = {}
    result = run("tune", "--url", gateway.url, *files)
    assert result.exit_code == 0
    assert "is significant (p 0.008)" in result.stdout
    assert '"id": "sound", "weight": ' in result.stdout
    assert "fusion:\n  rrf_k: 60\n  confidence_weight: 0.8\n" in result.stdout
    assert result.stderr.splitlines() == [
        "note: the present weight of junk, sound is not known and taken to be 1",
        "note: the present rrf_k and confidence_weight are not known and taken to be the defaults",
    ]


def test_good_settings_are_kept(gateway: JudgedGateway, run: Run, files: list[Any], tmp_path: Path) -> None:
    """What the registry says already is the starting point."""
    registry = registry_of(tmp_path, junk=1, sound=2)
    found = report(run("tune", "--url", gateway.url, "--json", *files, "--registry", registry))
    assert (found["verdict"], found["notes"]) == ("unchanged", [])
    assert (
        found["present"]
        == found["found"]
        == {
            "weights": {"junk": 1.0, "sound": 2.0},
            "rrfK": 60,
            "confidenceWeight": 0.8,
        }
    )


def test_the_seed_decides(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """The same seed, the same output to the letter, however the answers come in; it is told."""
    first = run("tune", "--url", gateway.url, "--json", *files, "--seed", 5)
    second = run("tune", "--url", gateway.url, "--json", *files, "--seed", 5, "--concurrency", 1)
    assert first.stdout == second.stdout
    assert report(first)["seed"] == 5


def test_confidences_and_settings_reach_the_search(
    gateway: JudgedGateway, run: Run, files: list[Any], tmp_path: Path
) -> None:
    """Where the truth is in the confidences alone, a confidence weight of 0 is not kept."""
    for text in TEXTS:
        gateway.lists["junk"][text] = hits("a-junk", "b-junk", confidence=(0.1, 0.05))
        gateway.lists["sound"][text] = hits("right", "z-junk", confidence=(0.9, 0.05))
    config = tmp_path / "gateway.yaml"
    config.write_text("fusion:\n  rrf_k: 30\n  confidence_weight: 0\n", encoding="utf-8")
    found = report(run("tune", "--url", gateway.url, "--json", *files, "--config", config))
    assert (found["present"]["rrfK"], found["present"]["confidenceWeight"]) == (30, 0)
    assert found["gateway"]["fusion"]["confidence_weight"] > 0


def test_queries_that_failed_somewhere_are_left_out(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """A failure costs the query; a refusal does not, since the engine would take no part in answering it."""
    gateway.errors["junk", TEXTS[0]] = {"code": -32010, "message": "no engine answered", "data": {}}
    gateway.errors["junk", TEXTS[1]] = {"code": -32005, "message": "no such mode", "data": {}}
    gateway.lists["mute"] = {}
    for text in TEXTS:
        gateway.errors["mute", text] = {"code": -32603, "message": "broken", "data": {}}
    found = report(run("tune", "--url", gateway.url, "--json", *files))
    assert (found["queries"]["incomplete"], set(found["found"]["weights"])) == (1, {"junk", "sound"})
    assert found["notes"] == [
        "junk: 1 query refused, first: no such mode (code -32005)",
        "junk: 1 query failed, first: no engine answered (code -32010)",
        "mute: 16 queries failed, first: broken (code -32603)",
        "mute: left out, it answered no query",
        "1 query left out: an engine failed, or all refused",
    ]


def test_one_engine_has_nothing_to_tune(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Fusion needs two."""
    result = run("tune", "--url", gateway.url, "--engines", "sound", *files)
    assert result.exit_code == 1
    assert "only one engine answered (sound); there is nothing to fuse" in result.stderr


def test_a_handful_of_queries_is_too_few(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Two halves need two queries each."""
    write_lines(files[1], *({"qid": text, "query": text} for text in TEXTS[:3]))
    result = run("tune", "--url", gateway.url, *files)
    assert result.exit_code == 1
    assert "tune needs 4" in result.stderr


def test_a_registry_at_fault_is_told_first(gateway: JudgedGateway, run: Run, files: list[Any], tmp_path: Path) -> None:
    """Before anybody is asked."""
    result = run("tune", "--url", gateway.url, *files, "--registry", registry_of(tmp_path, sound=-1))
    assert result.exit_code == 1
    assert "engines[0].weight" in result.stderr
    assert gateway.asked == []
