"""The present settings as files state them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.current_fusion import CurrentFusion, ask_gateway, read_files
from app.cli.failures import Failure
from app.evaluation.fusion_search import FusionParameters
from app.settings.field_errors import SettingsError
from tests.support.judged_gateway import JudgedGateway, hits, listening


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry with a secret that is not set here."""
    engines = [
        {"id": "docs", "url": "http://h/rcp", "weight": 2, "headers": {"Authorization": "Bearer ${NOBODYS_TOKEN}"}},
        {"id": "code", "url": "http://h/rcp", "confidence": "independent"},
    ]
    path = tmp_path / "rcp.json"
    path.write_text(json.dumps({"engines": engines}), encoding="utf-8")
    return path


@pytest.fixture
def gateway() -> Iterator[JudgedGateway]:
    """A gateway that reports what it does."""
    report = {
        "engines": [{"id": "docs", "weight": 3}, {"id": "off", "reason": "disabled"}, {"id": "x", "weight": "y"}, 7],
        "fusion": {"method": "rrf", "rrfK": 20, "confidenceWeight": 0.5},
    }
    with listening(JudgedGateway({"docs": {"one": hits("a")}}, report=report)) as fake:
        yield fake


def test_files_state_the_present_settings(registry: Path, tmp_path: Path) -> None:
    """Weights and readings from the registry, whose secrets are not needed; the rest from the settings."""
    config = tmp_path / "gateway.yaml"
    config.write_text("fusion:\n  rrf_k: 20\n  confidence_weight: 0.5\n", encoding="utf-8")
    present = read_files(registry, config)
    assert present.blend(["code", "docs"]) == FusionParameters({"code": 1.0, "docs": 2.0}, 20, 0.5)
    assert present.readings["code"] == "independent"
    assert present.notes(["code", "docs"]) == []


def test_the_gateway_states_them_too(gateway: JudgedGateway) -> None:
    """As it reports them in an answer; what makes no sense is passed over."""
    assert ask_gateway(gateway.url, "one", 5) == CurrentFusion({"docs": 3.0}, {}, 20, 0.5)
    gateway.report = {"engines": 3, "fusion": []}
    assert ask_gateway(gateway.url, "one", 5) == CurrentFusion()
    gateway.errors[None, "one"] = {"code": -32010, "message": "no engine answered"}
    assert ask_gateway(gateway.url, "one", 5) == CurrentFusion()


def test_files_are_believed_before_the_gateway(gateway: JudgedGateway, registry: Path) -> None:
    """Key by key."""
    both = read_files(registry, None).over(ask_gateway(gateway.url, "one", 5))
    assert both.blend(["code", "docs"]) == FusionParameters({"code": 1.0, "docs": 2.0}, 20, 0.5)
    assert both.readings["code"] == "independent"
    assert CurrentFusion(rrf_k=1, confidence_weight=0.0).over(both).blend([]) == FusionParameters({}, 1, 0.0)


def test_what_nobody_states_is_the_default(registry: Path) -> None:
    """And it is told."""
    bare = read_files(None, None)
    assert bare.blend(["docs"]) == FusionParameters({"docs": 1.0}, 60, 0.8)
    defaults = "the present rrf_k and confidence_weight are not known and taken to be the defaults"
    assert bare.notes(["docs", "news"]) == [
        "the present weight of docs, news is not known and taken to be 1",
        defaults,
    ]
    assert read_files(registry, None).notes(["docs"]) == [defaults]


def test_another_method_is_not_compared_with(gateway: JudgedGateway, tmp_path: Path) -> None:
    """A gateway that does not fuse by rrf has no settings of rrf to tune."""
    config = tmp_path / "gateway.yaml"
    config.write_text("fusion:\n  method: weighted\n", encoding="utf-8")
    with pytest.raises(Failure, match=r"rrf alone, and fusion.method is weighted"):
        read_files(None, config)
    gateway.report["fusion"]["method"] = "convex"
    with pytest.raises(Failure, match=r"rrf alone, and fusion.method is convex"):
        ask_gateway(gateway.url, "one", 5)


def test_a_file_at_fault_is_told(tmp_path: Path) -> None:
    """As every command tells it."""
    with pytest.raises(SettingsError):
        read_files(tmp_path / "none.json", None)
