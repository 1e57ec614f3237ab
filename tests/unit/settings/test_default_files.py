"""The files in `config/` say what the schema says."""

from pathlib import Path

import pytest
import rcp
import yaml
from pydantic import BaseModel

from app.settings.schema import GatewaySettings
from app.settings.sources import load_registry, load_settings

CONFIG = Path(__file__).parents[3] / "config"


def test_the_settings_file_holds_the_defaults() -> None:
    """`gateway.yaml` as shipped changes nothing."""
    assert load_settings(CONFIG / "gateway.yaml", {}) == GatewaySettings()


@pytest.mark.parametrize("section", GatewaySettings.model_fields)
def test_the_settings_file_names_every_setting(section: str) -> None:
    """Every section and key of the schema stands in `gateway.yaml`, as a comment where its default is nothing."""
    text = (CONFIG / "gateway.yaml").read_text()
    written = yaml.safe_load(text)[section]
    model = GatewaySettings.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    for key, info in model.model_fields.items():
        assert key in written if info.get_default() is not None else f"\n  # {key}:" in text


def test_the_registry_is_valid_and_needs_no_variables() -> None:
    """`rcp.json` as shipped can be served as it is."""
    loaded = load_registry(CONFIG / "rcp.json", {})
    assert len(loaded.registry.engines) >= 2


def test_an_sdk_selector_loads_the_same_registry() -> None:
    """The published SDK reads the very same file and sees the same engines."""
    loaded = load_registry(CONFIG / "rcp.json", {})
    selector = rcp.Selector.load(str(CONFIG / "rcp.json"))
    assert selector.size == len(loaded.registry.engines)
    for spec, entry in zip(selector._specs, loaded.registry.engines, strict=True):
        assert (spec.id, spec.url, spec.weight, spec.priority) == (entry.id, entry.url, entry.weight, entry.priority)


def test_an_sdk_selector_infers_transports_as_we_do(tmp_path: Path) -> None:
    """Keys of ours do not disturb the SDK, and what it infers without `transport` is what we infer."""
    path = tmp_path / "rcp.json"
    path.write_text(
        '{"engines":[{"id":"a","url":"http://h","timeoutMs":5},{"id":"b","command":["x"],"enabled":false}]}'
    )
    kinds = ["stdio" if spec.argv else "http" for spec in rcp.Selector.load(str(path))._specs]
    assert kinds == [entry.kind for entry in load_registry(path, {}).registry.engines]
