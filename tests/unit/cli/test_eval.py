"""Measuring a gateway and its engines from the command line."""

import json
from collections.abc import Callable, Iterator
from math import log2
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.judged_gateway import JudgedGateway, hits, listening, write_lines

pytest.importorskip("ir_measures", reason="its binary part is not built for this kind of machine")

Run = Callable[..., Result]

LISTS = {
    "code": {"one": hits("x", "b"), "two": hits("x", "y", "c"), "three": hits(7)},
    "docs": {"one": hits("a", "b"), "two": hits("d", "c"), "three": hits("x")},
}
QRELS = "q1 0 a 2\nq1 0 b 1\nq2 0 c 1\nq3 0 docs:7 1\nq3 0 7 0\n"


@pytest.fixture
def gateway() -> Iterator[JudgedGateway]:
    """A gateway over two engines, the ids of one of which have a namespace."""
    with listening(JudgedGateway({name: dict(lists) for name, lists in LISTS.items()})) as fake:
        yield fake


@pytest.fixture
def files(tmp_path: Path) -> list[Any]:
    """The options that name the files: four queries, three of them judged."""
    texts = {"q1": "one", "q2": "two", "q3": "three", "q4": "four"}
    queries = write_lines(tmp_path / "q.jsonl", *({"qid": qid, "query": text} for qid, text in texts.items()))
    (tmp_path / "qrels").write_text(QRELS, encoding="utf-8")
    return ["--queries", queries, "--qrels", tmp_path / "qrels"]


def report(result: Result) -> dict[str, Any]:
    """The JSON of a run that went well."""
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_selection_is_compared_with_asking_all_engines(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Every query is sent twice to the whole gateway: with selection and without."""
    found = report(run("eval", "--url", gateway.url, "--json", "--select", *files))
    assert [(system["kind"], system["id"]) for system in found["systems"]] == [
        ("gateway", None),
        ("gateway", "all engines"),
    ]
    sent = [params["x-gateway"] for params in gateway.asked]
    assert sorted(one["select"] for one in sent) == [False] * 3 + [True] * 3
    assert not any("engines" in one for one in sent)


def test_selection_and_engines_exclude_each_other(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """The command names the option that is one too many."""
    result = run("eval", "--url", gateway.url, "--select", "--engines", "code", *files)
    assert result.exit_code == 2
    assert "--engines" in result.stderr


def test_gateway_and_engines_are_measured(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Each system over the judged queries, with the values that one works out by hand."""
    gateway.lists["docs"]["three"] = hits(7)
    gateway.lists["code"]["three"] = hits("x", "7")
    gateway.namespaces["docs"] = "docs"
    (gateway.lists["docs"]["one"], gateway.lists["docs"]["two"]) = (hits("a"), hits("c"))
    Path(files[3]).write_text("q1 0 docs:a 2\nq1 0 b 1\nq2 0 docs:c 1\nq3 0 docs:7 1\n", encoding="utf-8")
    found = report(run("eval", "--url", gateway.url, "--json", *files))
    assert found["queries"] == {"judged": 3, "leftOut": 1}
    whole, code, docs = found["systems"]
    assert [(system["kind"], system["id"]) for system in found["systems"]] == [
        ("gateway", None),
        ("engine", "code"),
        ("engine", "docs"),
    ]
    ideal = 2 + 1 / log2(3)
    assert code["nDCG@10"] == pytest.approx((1 / log2(3)) / ideal / 3)
    assert code["Recall@50"] == pytest.approx(1 / 2 / 3)
    assert code["MRR"] == pytest.approx(1 / 2 / 3)
    assert docs["nDCG@10"] == pytest.approx((2 / ideal + 1 + 1) / 3)
    assert docs["Recall@50"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert docs["MRR"] == 1
    assert whole["Recall@50"] == 1
    assert {system["answered"] for system in found["systems"]} == {3}


def test_the_comparison_says_how_sure_it_is(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Difference, p and corrected p for each engine and metric, over the queries that both answered."""
    gateway.errors["docs", "two"] = {"code": -32010, "message": "no engine answered", "data": {}}
    found = report(run("eval", "--url", gateway.url, "--json", *files, "--qrels", judged_by_all(files)))
    significance = found["significance"]
    assert significance["test"] == "paired randomisation test, two-sided"
    cells = {(one["engine"], one["metric"]): one for one in significance["comparisons"]}
    assert len(cells) == 6
    assert (cells["docs", "MRR"]["queries"], cells["code", "MRR"]["queries"]) == (2, 3)
    for one in cells.values():
        assert 0 <= one["p"] <= one["pHolm"] <= 1
    whole, code, _ = found["systems"]
    assert cells["code", "nDCG@10"]["difference"] == pytest.approx(whole["nDCG@10"] - code["nDCG@10"])


def judged_by_all(files: list[Any]) -> Path:
    """Judgements in JSON under which every query has a relevant document that some engine returns."""
    path = Path(files[1]).parent / "qrels.json"
    path.write_text(json.dumps({"q1": ["a"], "q2": ["c", "y"], "q3": {"7": 3}}), encoding="utf-8")
    return path


def test_people_get_tables_and_notes(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Two tables and the name of the test on stdout; what was left out, refused or failed on stderr."""
    gateway.errors["docs", "two"] = {"code": -32010, "message": "no engine answered", "data": {"notes": ["docs: slow"]}}
    gateway.errors["code", "one"] = {"code": -32005, "message": "no such mode", "data": {"option": "mode"}}
    gateway.degraded = ["docs"]
    gateway.down = {"news": "connect"}
    result = run("eval", "--url", gateway.url, *files, "-k", 20)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["nDCG@10", "Recall@50", "MRR", "answered", "refused", "failed"]
    assert [(line[0], line[-3:]) for line in lines[1:4]] == [
        ("gateway", ["3", "0", "0"]),
        ("code", ["2", "1", "0"]),
        ("docs", ["2", "0", "1"]),
    ]
    assert [line[0] for line in lines[6:8]] == ["code", "docs"]
    assert lines[-1][:4] == ["p:", "paired", "randomisation", "test,"]
    assert result.stderr.splitlines() == [
        "note: 1 of 4 queries left out: no relevant document is known for them",
        "note: only 20 hits were asked for, so Recall@50 is recall among those",
        "note: news: left out, it is down (connect)",
        "note: gateway: 3 answers without docs, which failed",
        "note: code: 1 query refused, first: no such mode (code -32005, option mode)",
        "note: docs: 1 query failed, first: no engine answered (code -32010) docs: slow",
    ]


def test_engines_can_be_named(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Only those are measured beside the gateway, which is asked whole, for k hits."""
    found = report(run("eval", "--url", gateway.url, "--json", "--engines", "docs", "-k", 30, *files))
    assert [system["id"] for system in found["systems"]] == [None, "docs"]
    assert {params["k"] for params in gateway.asked} == {30}
    chosen = [params.get("x-gateway", {}).get("engines") for params in gateway.asked]
    assert sorted(chosen, key=str) == [None] * 3 + [["docs"]] * 3 or chosen.count(None) == chosen.count(["docs"]) == 3


def test_concurrency_is_bounded(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """One at a time, if so wished."""
    assert run("eval", "--url", gateway.url, *files, "--concurrency", 1).exit_code == 0
    assert gateway.busiest == 1


def test_nothing_answered_is_an_error(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """Single failures are not fatal, all of them are."""
    for name in (None, "code", "docs"):
        for text in ("one", "two", "three"):
            gateway.errors[name, text] = {"code": -32011, "message": "slow down", "data": {}}
    result = run("eval", "--url", gateway.url, *files)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[:2] == [
        "error: not one query was answered",
        "  gateway: 3 queries failed, first: slow down (code -32011)",
    ]


def test_files_are_read_before_anybody_is_asked(gateway: JudgedGateway, run: Run, files: list[Any]) -> None:
    """A fault in a file is one line, exit code 1; an option that is missing is a usage error."""
    Path(files[1]).write_text("{}\n", encoding="utf-8")
    result = run("eval", "--url", gateway.url, *files)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {files[1]}, line 1: 'qid' must be a string")
    assert len(result.stderr.splitlines()) == 1
    assert gateway.asked == []
    assert run("eval", "--url", gateway.url).exit_code == 2


def test_a_missing_library_is_told(run: Run, files: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the files are read."""
    monkeypatch.setattr("app.evaluation.measures.find_spec", lambda _: None)
    assert "pip install '.[eval]'" in run("eval", *files).stderr
