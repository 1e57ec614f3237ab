"""Settings as shown to operators: secrets masked, and where each value comes from."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings.effective_settings import MASK, effective, masked, masked_url
from app.settings.schema import EngineEntry, GatewaySettings, Registry
from app.settings.sources import load_settings


def test_registry_secrets_are_masked() -> None:
    """Header values, the values of a URL's query and a program's arguments are hidden; names and all else stay."""
    entry = EngineEntry(id="a", url="https://h/rcp?key=SECRET&v=1", headers={"Authorization": "SECRET"}, timeout_ms=5)
    others = EngineEntry(id="c", url="http://h", replicas=["http://i?key=SECRET"])
    shown = masked(Registry(engines=[entry, EngineEntry(id="b", command=["x", "--key", "SECRET"]), others]))
    first, second, third = shown["engines"]
    assert third["replicas"] == ["http://i?key=***"]
    assert first["headers"] == {"Authorization": "***"}
    assert first["url"] == "https://h/rcp?key=***&v=***"
    assert first["timeoutMs"] == 5
    assert second["command"] == ["x", "***", "***"]
    assert "SECRET" not in str(shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://user:SECRET@h:6379/0", "redis://***@h:6379/0"),
        ("rediss://:SEC@RET@h/0?password=SECRET", "rediss://***@h/0?password=***"),
        ("unix://SECRET@/run/redis.sock?db=1", "unix://***@/run/redis.sock?db=***"),
    ],
)
def test_credentials_of_the_state_are_masked(url: str, shown: str) -> None:
    """Where the state is kept is shown, and not who we are there."""
    assert masked(GatewaySettings.model_validate({"state": {"url": url}}))["state"]["url"] == shown


def test_settings_are_shown_with_defaults() -> None:
    """Every effective value of the settings is there under the key of the file."""
    assert masked(GatewaySettings())["retrieve"]["deadline_ms"] == 10_000


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/rcp", "http://h/rcp"),
        ("http://h?SECRET", "http://h?***"),
        ("http://h?a=SECRET=SECRET", "http://h?a=***"),
        ("http://h?a=&b", "http://h?a=***&***"),
    ],
)
def test_url_queries(url: str, shown: str) -> None:
    """A part of a query without a name counts as a value."""
    assert masked_url(url) == shown


def test_the_address_of_a_collector_is_masked() -> None:
    """Some collectors are told who sends by a key in their URL."""
    settings = GatewaySettings.model_validate({"traces": {"endpoint": "https://h/v1/traces?api-key=SECRET"}})
    assert masked(settings)["traces"]["endpoint"] == "https://h/v1/traces?api-key=***"
    with pytest.raises(ValidationError, match="OTEL_EXPORTER_OTLP_HEADERS"):
        GatewaySettings.model_validate({"traces": {"endpoint": "https://me:SECRET@h/v1/traces"}})


def test_the_address_of_an_issuers_keys_is_masked() -> None:
    """What stands in its query may be a secret."""
    jwt = {"issuer": "i", "audience": "a", "jwks_url": "https://h/jwks?key=SECRET"}
    auth = {"mode": ["jwt"], "tenants_file": "t"}
    shown = masked(GatewaySettings.model_validate({"auth": auth, "jwt": jwt}))
    assert shown["jwt"]["jwks_url"] == "https://h/jwks?key=***"


def test_the_secret_of_the_deployment_is_masked() -> None:
    """Whoever knows it can make up the names of memories."""
    auth = {"mode": ["keys"], "tenants_file": "t", "secret": "a secret of many letters"}
    settings = GatewaySettings.model_validate({"auth": auth})
    assert masked(settings)["auth"]["secret"] == MASK
    assert "many letters" not in repr(settings)
    assert masked(GatewaySettings())["auth"]["secret"] is None


def test_each_setting_has_its_source(tmp_path: Path) -> None:
    """The environment wins over the file, the file over the default; every setting is listed once."""
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
