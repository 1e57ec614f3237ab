"""Whom a gateway lets in is settled before it listens: what would let everybody in, or nobody, does not start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import main
from app.settings.field_errors import SettingsError
from tests.support.running_gateway import made_state
from tests.support.tenancy import tenant

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry without engines."""
    path = tmp_path / "rcp.json"
    path.write_text('{"engines": []}')
    return path


@pytest.fixture
def no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would listen fails the test."""

    def listen(host: str, port: int) -> Any:
        raise AssertionError(f"listens on {host}")

    monkeypatch.setattr(main, "listen", listen)


@pytest.mark.usefixtures("no_listener")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_everybody_is_not_let_in_by_mistake(registry: Path, host: str) -> None:
    """A public address without a mode is a fault that says what to do, before anything is bound."""
    with pytest.raises(SettingsError, match=r"auth\.mode: is none, .*RCP_GATEWAY__AUTH__ALLOW_ANONYMOUS=true"):
        main.serve(registry, None, host, 0, None)


@pytest.mark.usefixtures("no_listener")
def test_it_is_let_in_where_that_is_meant(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auth.allow_anonymous` it would listen."""
    monkeypatch.setenv("RCP_GATEWAY__AUTH__ALLOW_ANONYMOUS", "true")
    with pytest.raises(AssertionError, match=r"listens on 0\.0\.0\.0"):
        main.serve(registry, None, "0.0.0.0", 0, None)


@pytest.mark.usefixtures("no_listener")
def test_a_bad_tenants_file_is_a_fault(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be used does not become a gateway that lets nobody in."""
    monkeypatch.setenv("RCP_GATEWAY__AUTH__MODE", "keys")
    monkeypatch.setenv("RCP_GATEWAY__AUTH__TENANTS_FILE", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(SettingsError, match="there is no such file"):
        main.serve(registry, None, "0.0.0.0", 0, None)


def test_tokens_need_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed the mode is a fault that names the extra."""
    for name in ("joserfc", "app.api.auth.jwks", "app.api.auth.jwt"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    jwt = {"issuer": "i", "audience": "a", "jwks_url": "https://127.0.0.1/jwks"}
    settings = {"auth": {"mode": ["jwt"], "tenants_file": "t"}, "jwt": jwt}
    with pytest.raises(SettingsError, match=r"pip install '\.\[jwt\]'"):
        made_state([], settings, tenants={"a": tenant()})


def test_optional_libraries_are_loaded_on_demand() -> None:
    """Without authentication, the libraries for tokens are not loaded."""
    program = (
        "import sys, app.main; from app.settings.schema import *; from app.settings.sources import LoadedRegistry;"
        "app.main.build_app(app.main.build_state(LoadedRegistry(Registry(engines=[]), '0'), GatewaySettings()));"
        "print([name for name in ('limits', 'joserfc', 'httpx2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_started_gateway_asks_for_keys(registry: Path, tmp_path: Path) -> None:
    """The command serves with the tenants file, says in the log whose keys there are, and no digest."""
    entry = tenant("*", keys=("key-0123456789",))
    (tmp_path / "t.yaml").write_text(json.dumps({"tenants": {"red": entry}}))
    settings = {"RCP_GATEWAY__AUTH__MODE": "keys", "RCP_GATEWAY__AUTH__TENANTS_FILE": str(tmp_path / "t.yaml")}
    command = [sys.executable, "-m", "app", "serve", "--registry", str(registry), "--port", "0"]
    process = subprocess.Popen(
        command, cwd=PROJECT, env=os.environ | settings, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []
    try:
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "started":
                break
        port = next(line["port"] for line in lines if line["event"] == "listening")
        statuses = [_status(port, key) for key in ("", "key-0123456789")]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert statuses == ["401", "200"]
    assert [line["keys"] for line in lines if line["event"] == "tenants"] == [{"red": 1}]
    assert entry["keys"][0]["sha256"] not in json.dumps(lines)


def _status(port: int, key: str) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "info"})
    connection.request("POST", "/rcp", body, {"x-api-key": key} if key else {})
    status = str(connection.getresponse().status)
    connection.close()
    return status
