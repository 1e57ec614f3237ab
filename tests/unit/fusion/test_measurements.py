"""The benches of the fusion, on data small enough to know the answer."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench import fusion_cost, fusion_quality


def _hit(key: str, confidence: float) -> dict[str, Any]:
    return {"id": key, "score": 1.0, "confidence": confidence, "mix": confidence}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two engines and one query: `good` knows the relevant document, in second place, `bad` does not."""
    engines = {"bad": [_hit("w1", 0.1), _hit("w2", 0.1)], "good": [_hit("w3", 0.9), _hit("r", 0.9)]}
    line = json.dumps({"qid": "q", "federation": "f", "engines": engines})
    (tmp_path / "runs").mkdir()
    for run in ("aj", "b_rand", "b_topic", "b_fed1", "b_fed2", "c"):
        (tmp_path / "runs" / f"{run}.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    (tmp_path / "qrels.json.gz").write_bytes(gzip.compress(json.dumps({"q": ["r"]}).encode()))
    federations = {"federations": {"f": {"best": "good", "bad": "bad"}}}
    scenarios = dict.fromkeys(("a", "aj", "b_rand", "b_topic", "b_fed1", "b_fed2", "c"), federations)
    (tmp_path / "manifest.json").write_text(json.dumps({"fetchK": 2, "scenarios": scenarios}))
    return tmp_path


def test_quality_is_measured_and_held_against_the_bars(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibrated confidences lift the relevant document above the noise; a bar that is missed is named, exit code 1."""
    assert fusion_quality.main([str(data), "--json"]) == 1
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["plain"]["c"] == {"ndcg": pytest.approx(1 / 2), "recall": 1.0, "mrr": pytest.approx(1 / 3)}
    assert outcome["gains"]["cal"]["c"] == pytest.approx(0.6309297535714575 - 1 / 2)
    assert set(outcome["gains"]["none"].values()) == {0}
    assert "over on c: -0.069, the bar is +0.050" in outcome["missed"]
    assert not [fault for fault in outcome["missed"] if "differs" in fault]


def test_quality_prints_a_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for every profile, and the verdict."""
    fusion_quality.main([str(data)])
    printed = capsys.readouterr().out
    assert all(f"\n{profile} " in printed for profile in fusion_quality.PROFILES)
    assert printed.splitlines()[-1].endswith("missed")


def test_quality_needs_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without the runs is a usage error."""
    assert fusion_quality.main([str(tmp_path)]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err


def test_cost_is_measured_for_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell has a positive cost and ratio, and a bar can be set."""
    assert fusion_cost.main(["--rounds", "1", "--scale", "0.01", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["size"], cell["kind"]) for cell in cells] == [(s, k) for s in (10, 100) for k in fusion_cost.KINDS]
    assert all(cell["ours"] > 0 and cell["ratio"] > 0 for cell in cells)
    assert fusion_cost.main(["--rounds", "1", "--scale", "0.01", "--max-ratio", "0"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 7
