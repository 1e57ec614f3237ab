"""Files and environment made settings; whatever is wrong is a SettingsError."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.settings.field_errors import SettingsError
from app.settings.schema import GatewaySettings
from app.settings.sources import LoadedRegistry, load_registry, load_settings
from app.settings.tenants_file import read_tenants


def _settings(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> GatewaySettings:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    return load_settings(path, environ or {})


def _registry(tmp_path: Path, document: Any, environ: Mapping[str, str] | None = None) -> LoadedRegistry:
    path = tmp_path / "rcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_registry(path, environ or {})


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "server:\nlog:\n"])
def test_an_empty_file_means_defaults(tmp_path: Path, text: str) -> None:
    """Nothing written is nothing wished for."""
    assert _settings(tmp_path, text) == GatewaySettings()


def test_without_a_file_the_environment_alone_speaks() -> None:
    """No file: defaults and the environment."""
    settings = load_settings(None, {"RCP_GATEWAY__RETRIEVE__MAX_K": "50"})
    assert settings.retrieve.max_k == 50
    assert settings.server == GatewaySettings().server


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    """File over defaults, environment over file."""
    settings = _settings(
        tmp_path, "server:\n  port: 1\n  workers: 2\nlog:\n  level: error\n", {"RCP_GATEWAY__SERVER__PORT": "3"}
    )
    assert (settings.server.port, settings.server.workers, settings.log.level) == (3, 2, "error")


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """File and environment are judged together, so that one start shows everything there is to mend."""
    with pytest.raises(SettingsError) as error:
        _settings(
            tmp_path,
            "retrieve:\n  windw_min: 3\n  deadline_ms: 5s\n",
            {"RCP_GATEWAY__SERVER__PROT": "1", "RCP_GATEWAY__SERVER__PORT": "no"},
        )
    assert error.value.file.endswith("gateway.yaml")
    assert {fault.path for fault in error.value.faults} == {
        "RCP_GATEWAY__SERVER__PROT",
        "server.port",
        "retrieve.windw_min",
        "retrieve.deadline_ms",
    }


def test_faults_of_the_environment_alone_name_it() -> None:
    """Without a file, the environment is what the error names."""
    with pytest.raises(SettingsError, match="environment: 1 fault"):
        load_settings(None, {"RCP_GATEWAY__LOG__LEVEL": "loud"})


def test_a_registry_is_read_with_its_secrets(tmp_path: Path) -> None:
    """Entries come with defaults, and header values with the variables they name."""
    document = {
        "engines": [{"id": "a", "url": "http://h", "headers": {"X": "${TOKEN}"}}, {"id": "b", "command": ["x"]}]
    }
    loaded = _registry(tmp_path, document, {"TOKEN": "s3cret"})
    first, second = loaded.registry.engines
    assert first.headers == {"X": "s3cret"}
    assert (second.kind, second.timeout_ms, second.max_concurrency, second.enabled) == ("stdio", 2000, 32, True)


def test_secrets_are_not_in_what_is_printed_of_it(tmp_path: Path) -> None:
    """The repr names fingerprint and engines only."""
    document = {"engines": [{"id": "a", "url": "http://h?key=SECRET", "headers": {"X": "${T}"}}]}
    loaded = _registry(tmp_path, document, {"T": "SECRET"})
    assert repr(loaded) == f"LoadedRegistry({loaded.fingerprint}: a)"


def test_every_fault_of_a_registry_comes_at_once(tmp_path: Path) -> None:
    """Unset variables and bad keys are told together."""
    document = {"engines": [{"id": "a", "url": "http://h", "headers": {"X": "${TOKEN}"}, "timeoutMs": "5s"}]}
    with pytest.raises(SettingsError) as error:
        _registry(tmp_path, document)
    assert [fault.path for fault in error.value.faults] == ["engines[0].headers.X", "engines[0].timeoutMs"]
    assert "TOKEN" in str(error.value)


def test_snake_case_is_no_key_of_the_registry(tmp_path: Path) -> None:
    """Names used inside the program are not accepted in the file."""
    with pytest.raises(SettingsError, match="did you mean 'timeoutMs'"):
        _registry(tmp_path, {"engines": [{"id": "a", "url": "http://h", "timeout_ms": 5}]})


@pytest.mark.parametrize("text", ["", "[]", "null", '{"engines": null}', '{"engines": [null]}', '{"a": NaN}', "{"])
def test_anything_else_is_a_settings_error(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file, nothing but a SettingsError comes out."""
    with pytest.raises(SettingsError):
        _registry(tmp_path, text)


def _fingerprint(tmp_path: Path, document: Any, **environ: str) -> str:
    return _registry(tmp_path, document, environ).fingerprint


def test_the_fingerprint_follows_what_is_written_and_not_how(tmp_path: Path) -> None:
    """Order of engines and keys and white space do not matter; any other difference does."""
    a = {"id": "a", "url": "http://h", "weight": 2}
    b = {"id": "b", "url": "http://h"}
    print_ = _fingerprint(tmp_path, {"engines": [a, b]})
    assert len(print_) == 8
    assert int(print_, 16) >= 0
    assert _fingerprint(tmp_path, {"engines": [b, dict(reversed(a.items()))]}) == print_
    assert _fingerprint(tmp_path, json.dumps({"engines": [a, b]}, indent=7)) == print_
    assert _fingerprint(tmp_path, {"engines": [a, {**b, "weight": 3}]}) != print_
    assert _fingerprint(tmp_path, {"engines": [a]}) != print_


def test_the_fingerprint_does_not_follow_secrets(tmp_path: Path) -> None:
    """Replicas with a rotated secret are still the same gateway."""
    document = {"engines": [{"id": "a", "url": "http://h", "headers": {"X": "${T}"}}]}
    assert _fingerprint(tmp_path, document, T="one") == _fingerprint(tmp_path, document, T="two")


def test_a_registry_fault_has_its_line_and_engine(tmp_path: Path) -> None:
    """A bad value has the line of its key, a missing key that of the object; both the id of the engine."""
    path = tmp_path / "rcp.json"
    path.write_text(
        '{\n  "engines": [\n    {"id": "docs", "url": "http://h",\n\t"timeoutMs": "5s"},\n    {\n'
        '      "id": "code"}\n  ]\n}'
    )
    with pytest.raises(SettingsError) as error:
        load_registry(path, {})
    assert str(error.value).splitlines()[1:] == [
        "  line 4, engine 'docs': engines[0].timeoutMs: expected a whole number, found text '5s'; "
        "write 5000 (milliseconds)",
        "  line 5, engine 'code': engines[1]: needs 'url' or 'command'",
    ]


def test_a_settings_fault_has_its_line_unless_the_environment_set_the_value(tmp_path: Path) -> None:
    """Block and flow YAML, lists and unknown keys; a value of a variable is in no line of the file."""
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "server:\n  # why\n  trusted_proxies:\n    - 10.0.0.0/8\n    - nonsense\nlog: {levl: info,\n  format: x}\n"
    )
    with pytest.raises(SettingsError) as error:
        load_settings(path, {"RCP_GATEWAY__SERVER__PORT": "70000", "RCP_GATEWAY__NO": "1"})
    lines = {fault.path: fault.line for fault in error.value.faults}
    assert lines == {
        "RCP_GATEWAY__NO": None,
        "server.trusted_proxies[1]": 5,
        "log.levl": 6,
        "log.format": 7,
        "server.port": None,
    }


def test_a_tenants_fault_has_its_line(tmp_path: Path) -> None:
    """A fault between several keys points to one of them."""
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants:\n  a:\n    limits:\n      burst: 3\n")
    with pytest.raises(SettingsError, match=r"line 4: tenants\.a\.limits\.burst: needs 'rps'"):
        read_tenants(path)
