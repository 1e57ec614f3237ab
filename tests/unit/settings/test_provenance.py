"""Where a setting comes from: its default, the file, or the environment."""

from pathlib import Path

from app.settings.provenance import effective
from app.settings.schema import GatewaySettings
from app.settings.sources import load_settings


def test_each_setting_tells_its_source(tmp_path: Path) -> None:
    """The environment wins over the file, the file over the default; every setting is told once."""
    file = tmp_path / "gateway.yaml"
    file.write_text("server: {port: 9000, workers: 2}\nfusion:\n", encoding="utf-8")
    environ = {"RCP_GATEWAY__SERVER__WORKERS": "3", "RCP_GATEWAY__RETRIEVE__MAX_K": "50"}
    told = {one.key: one for one in effective(load_settings(file, environ), environ)}
    assert told["server.port"][1:] == (9000, 8080, "file")
    assert told["server.workers"][1:] == (3, 1, "environment")
    assert told["retrieve.max_k"][1:] == (50, 200, "environment")
    assert told["fusion.rrf_k"][1:] == (60, 60, "default")
    keys = [f"{section}.{key}" for section, info in GatewaySettings.model_fields.items() for key in _keys(info)]
    assert list(told) == keys


def _keys(info: object) -> list[str]:
    return list(info.annotation.model_fields)  # type: ignore[attr-defined]  # each section is a model
