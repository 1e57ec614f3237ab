"""Warnings about valid configurations that most likely are not meant."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from app.settings.config_warnings import config_warnings
from app.settings.sources import load_registry, load_settings, load_tenants
from app.settings.tenants_file import moment_of

NOW = moment_of("2027-06-01")
DOCS = {"id": "docs", "url": "http://h"}


def warnings(
    folder: Path, *engines: dict[str, Any], settings: str = "", tenants: str = "", environ: dict[str, str] | None = None
) -> list[str]:
    """The warnings about these files, as they are shown."""
    (folder / "rcp.json").write_text(json.dumps({"engines": engines}, indent=1))
    (folder / "gateway.yaml").write_text(settings)
    found = environ or {}
    if tenants:
        (folder / "tenants.yaml").write_text(tenants)
        found |= {"RCP_GATEWAY__AUTH__MODE": "keys", "RCP_GATEWAY__AUTH__TENANTS_FILE": str(folder / "tenants.yaml")}
    read = load_settings(folder / "gateway.yaml", found)
    loaded = load_registry(folder / "rcp.json", found)
    return [str(one) for one in config_warnings(loaded, read, load_tenants(read), NOW, found)]


def tenant(keys: str = "", engines: str = "[docs]", more: str = "") -> str:
    """A tenants file with one tenant."""
    key = f'{{id: k, sha256: "{"0" * 64}"{keys}}}'
    return f"tenants:\n  team:\n    keys:\n      - {key}\n    engines: {engines}\n{more}"


def test_a_sound_configuration_has_no_warning(tmp_path: Path) -> None:
    """Neither the least one nor one with tenants, weights and secrets."""
    full = DOCS | {"headers": {"Authorization": "Bearer ${TOKEN}", "X-Key": "pa$$word$x"}}
    assert warnings(tmp_path, full, tenants=tenant(", expires: 2027-06-02"), environ={"TOKEN": "$ecret"}) == []
    assert warnings(tmp_path) == []


@pytest.mark.parametrize("text", ["Bearer $TOKEN", "$TOKEN", "%TOKEN%", "Bearer $(cat key)", "{{ token }}", "k=$env:T"])
def test_variables_that_nobody_replaces(tmp_path: Path, text: str) -> None:
    """Other syntax than `${NAME}` in a header is sent as it is; the text, which may be a secret, is not quoted."""
    (line,) = warnings(tmp_path, DOCS | {"headers": {"Authorization": text}})
    assert line == (
        "line 7, engine 'docs': engines[0].headers.Authorization: looks like a variable, but is used as it is written; "
        "in a header value write ${NAME}"
    )


def test_variables_elsewhere(tmp_path: Path) -> None:
    """Also in a URL and in gateway.yaml, where nothing is replaced; a shell's script has variables of its own."""
    shell = {"id": "sh", "command": ["sh", "-c", "exec engine $HOME"]}
    (url,) = warnings(tmp_path, {"id": "a", "url": "http://$HOST/rcp"}, shell)
    assert "engines[0].url: looks like a variable" in url
    secret = "auth:\n  secret: ${MY_LONG_SECRET_NAME}\n"
    (setting,) = warnings(tmp_path, DOCS, settings=secret)
    assert setting.startswith("auth.secret: looks like a variable")
    assert setting.endswith("set it with the environment variable RCP_GATEWAY__AUTH__SECRET")
    assert warnings(tmp_path, DOCS, settings=secret, environ={"RCP_GATEWAY__AUTH__SECRET": "$" + "x" * 20}) == []


def test_only_weights_of_0(tmp_path: Path) -> None:
    """Of the registry's enabled engines, and of those that a tenant sees."""
    zero = DOCS | {"weight": 0}
    assert warnings(tmp_path, zero)[0].startswith("engines: every enabled engine has weight 0")
    assert warnings(tmp_path, zero, {"id": "off", "url": "http://i", "enabled": False}) != []
    assert warnings(tmp_path, zero, {"id": "b", "url": "http://i"}) == []
    (line,) = warnings(tmp_path, DOCS, tenants=tenant(more="    weights: {docs: 0}\n"))
    assert line.startswith("line 2: tenants.team: all its engines have weight 0")


def test_tenants_that_cannot_do_anything(tmp_path: Path) -> None:
    """No engines, only unknown or disabled ones, no keys, an expired key."""
    assert warnings(tmp_path, DOCS, tenants=tenant(engines="[]"))[0].startswith("line 2: tenants.team: has no engines")
    assert warnings(tmp_path, DOCS, tenants=tenant(engines="[code]")) == [
        "line 5: tenants.team.engines[0]: no engine is called 'code'"
    ]
    (disabled,) = warnings(tmp_path, DOCS | {"enabled": False}, tenants=tenant())
    assert "names only disabled engines" in disabled
    (keyless,) = warnings(tmp_path, DOCS, tenants="tenants:\n  team:\n    engines: [docs]\n")
    assert keyless.startswith("line 2: tenants.team: has no keys")
    (expired,) = warnings(tmp_path, DOCS, tenants=tenant(", expires: 2027-05-31"))
    assert expired == (
        "line 4: tenants.team.keys[0].expires: key 'k' expired on 2027-05-31 00:00 UTC and is refused; "
        "remove it, or issue a new key"
    )


@pytest.mark.parametrize(
    ("days", "said"), [(-1, "has expired"), (3, "expires within 3 days"), (20, "expires within 20 days"), (22, None)]
)
def test_a_certificate_that_ends_soon(tmp_path: Path, days: int, said: str | None) -> None:
    """The server's certificate expired or will within three weeks; a file that is none is the preflight check's."""
    file = tmp_path / "server.pem"
    until = datetime.fromtimestamp(NOW, UTC) + timedelta(days=days) - timedelta(hours=1)
    trustme.CA().issue_cert("localhost", not_after=until).cert_chain_pems[0].write_to_path(str(file))
    settings = f"server:\n  tls: {{cert_file: {file}}}\n"
    found = warnings(tmp_path, settings=settings)
    remedy = "write a renewed one to the same files"
    assert found == ([] if said is None else [f"server.tls.cert_file: the certificate {said}; {remedy}"])
    file.write_text("")
    assert warnings(tmp_path, settings=settings) == []
