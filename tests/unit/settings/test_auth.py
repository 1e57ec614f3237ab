"""Who may come in, as settings say it: modes, what they need of each other, and where a gateway must not listen."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.settings.auth import AuthSettings, exposure, is_loopback
from app.settings.field_errors import SettingsError
from app.settings.schema import GatewaySettings
from app.settings.sources import load_settings

JWT: dict[str, Any] = {
    "RCP_GATEWAY__JWT__ISSUER": "https://i",
    "RCP_GATEWAY__JWT__AUDIENCE": "a",
    "RCP_GATEWAY__JWT__JWKS_URL": "https://i/jwks",
}
TENANTS = {"RCP_GATEWAY__AUTH__TENANTS_FILE": "t.yaml"}


@pytest.mark.parametrize(
    ("written", "modes"),
    [
        ("keys", ["keys"]),
        ("[keys, jwt]", ["keys", "jwt"]),
        ("keys,jwt", ["keys", "jwt"]),
        ("jwt, keys", ["jwt", "keys"]),
    ],
)
def test_modes_from_the_environment(written: str, modes: list[str]) -> None:
    """One word, several with commas, or a list."""
    settings = load_settings(None, {"RCP_GATEWAY__AUTH__MODE": written, **TENANTS, **JWT})
    assert settings.auth.mode == modes


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"MODE": "kyes"}, "auth.mode[0]: expected 'none', 'keys' or 'jwt', found text 'kyes' (did"),
        ({"MODE": "none,keys"}, "auth.mode: 'none' cannot be combined with another mode"),
        ({"MODE": "[]"}, "auth.mode: must not be empty"),
        ({"MODE": "keys"}, "auth.tenants_file: is missing: mode keys needs a tenants file"),
        ({"TENANTS_FILE": "t"}, "auth.tenants_file: is not used while auth.mode is none; set auth.mode to [keys]"),
        ({"MODE": "jwt", "TENANTS_FILE": "t"}, "jwt.issuer: is missing: auth.mode contains jwt"),
    ],
)
def test_what_makes_no_sense_is_told(environ: dict[str, str], fault: str) -> None:
    """Each fault names the key and the remedy."""
    with pytest.raises(SettingsError) as error:
        load_settings(None, {f"RCP_GATEWAY__AUTH__{name}": value for name, value in environ.items()})
    assert fault.partition(" (did")[0] in str(error.value)


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://login.example/jwks", True),
        ("http://127.0.0.1:1/jwks", True),
        ("http://localhost/jwks", True),
        ("http://login.example/jwks", False),
        ("https://user:SECRET@login.example/jwks", False),
        ("https://[SECRET/jwks", False),
        ("SECRET", False),
    ],
)
def test_keys_come_over_tls(url: str, fine: bool) -> None:
    """Keys that decide who is believed are not fetched in clear but on loopback; no secret is repeated."""
    environ = {"RCP_GATEWAY__AUTH__MODE": "jwt", **TENANTS, **JWT, "RCP_GATEWAY__JWT__JWKS_URL": url}
    if fine:
        assert load_settings(None, environ).jwt.jwks_url == url
        return
    with pytest.raises(SettingsError) as error:
        load_settings(None, environ)
    assert "jwt.jwks_url: must be an https:// URL" in str(error.value)
    assert "SECRET" not in str(error.value)


def test_no_symmetric_algorithm_can_be_allowed() -> None:
    """What is published could sign; `none` could not even be checked."""
    for algorithm in ("HS256", "none", "EdDSA"):
        with pytest.raises(SettingsError):
            load_settings(None, {"RCP_GATEWAY__JWT__ALGORITHMS": algorithm})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost", "LocalHost.")),
        *((host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "gateway.example")),
    ],
)
def test_where_everybody_may_ask_everything(host: str, loopback: bool) -> None:
    """Without telling callers apart a gateway serves this machine, unless that is meant."""
    assert is_loopback(host) is loopback
    fault = exposure(host, AuthSettings())
    assert (fault is None) is loopback
    if fault is not None:
        assert "auth.allow_anonymous" in str(fault)
    assert exposure(host, AuthSettings(allow_anonymous=True)) is None
    assert exposure(host, AuthSettings(mode=["keys"], tenants_file="t")) is None


def test_admin_metrics_need_callers() -> None:
    """Nobody could ever read them otherwise."""
    with pytest.raises(SettingsError) as error:
        load_settings(None, {"RCP_GATEWAY__METRICS__ACCESS": "admin"})
    assert "metrics.access: 'admin' needs authentication; set auth.mode" in str(error.value)


def test_proxies_are_addresses_or_networks() -> None:
    """Anything else is told."""
    assert load_settings(None, {"RCP_GATEWAY__SERVER__TRUSTED_PROXIES": "10.0.0.0/8, ::1"}).server.trusted_proxies == [
        "10.0.0.0/8",
        "::1",
    ]
    with pytest.raises(SettingsError) as error:
        load_settings(None, {"RCP_GATEWAY__SERVER__TRUSTED_PROXIES": "[proxy.example]"})
    assert "server.trusted_proxies[0]: must be an IP address or network" in str(error.value)


def test_who_reads_the_numbers_may_be_written_as_auth() -> None:
    """`metrics.auth` is `metrics.access`."""
    assert GatewaySettings.model_validate({"metrics": {"auth": "open"}}).metrics.access == "open"
    with pytest.raises(ValidationError, match="is given twice, also as 'auth'"):
        GatewaySettings.model_validate({"metrics": {"auth": "open", "access": "open"}})
