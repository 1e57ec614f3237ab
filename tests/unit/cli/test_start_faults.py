"""What keeps a gateway from starting is told by `check` and by `serve` alike: one function decides for both."""

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread
from typing import Any

import pytest
from typer.testing import Result

from tests.support.authority import Authority
from tests.support.ports import free_port

Run = Callable[..., Result]
Json = dict[str, Any]

JWT = {"issuer": "i", "audience": "a", "jwks_url": "https://127.0.0.1/jwks"}
TOKENS = {"auth": {"mode": ["jwt"], "tenants_file": "t.yaml"}, "jwt": JWT}
SECURE = {"id": "e", "url": "https://h"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a tenants file; a gateway that would start says so instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text("tenants: {a: {}}")

    def started(serving: Any) -> None:
        serving.close()
        raise AssertionError("it has started")

    monkeypatch.setattr("app.main._run", started)
    return tmp_path


def write(files: Path, settings: Json, *engines: Json) -> tuple[str, ...]:
    """The options that name a registry and settings; any port is free."""
    (files / "r.json").write_text(json.dumps({"engines": engines}))
    (files / "g.yaml").write_text(json.dumps({**settings, "server": {"port": 0, **settings.get("server", {})}}))
    return "--registry", "r.json", "--config", "g.yaml"


def refusal(result: Result) -> str:
    """What is told of a gateway that must not start."""
    assert result.exit_code == 1, result.output
    return result.stderr


@pytest.mark.parametrize(
    ("library", "settings", "path", "extra"),
    [
        ("redis", {"state": {"url": "redis://127.0.0.1"}}, "state.url", "redis"),
        ("joserfc", TOKENS, "auth.mode", "jwt"),
        (
            "opentelemetry.exporter.otlp.proto.http",
            {"traces": {"endpoint": "http://127.0.0.1:4318/v1/traces"}},
            "traces.endpoint",
            "otel",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve", "stdio"])
def test_a_library_that_is_not_installed(
    command: str, library: str, settings: Json, path: str, extra: str, files: Path, run: Run, monkeypatch: Any
) -> None:
    """A setting that needs it is a fault, and the remedy names the extra."""
    monkeypatch.setitem(sys.modules, library, None)
    told = refusal(run(command, *write(files, settings)))
    if command == "stdio" and extra == "jwt":  # over stdio there are no tokens
        assert "it has started" in told
        return
    assert f"{path}: needs the library '{library.partition('.')[0]}', which is not installed; " in told
    assert f"pip install '.[{extra}]'" in told


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"server": {"tls": {"cert_file": "none.pem"}}}, "server.tls.cert_file"),
        ({"server": {"tls": {"cert_file": "CERT", "key_file": "none.pem"}}}, "server.tls.key_file"),
        ({"server": {"tls": {"cert_file": "CERT", "key_file": "KEY", "client_ca_file": "no.pem"}}}, "client_ca_file"),
        ({"server": {"host": "0.0.0.0"}}, "auth.mode"),
        ({"auth": {"mode": ["keys"], "tenants_file": "none.yaml"}}, "none.yaml"),
        ({"state": {"url": "http://127.0.0.1"}}, "state.url"),
        ({"traces": {"endpoint": "ftp://127.0.0.1"}}, "traces.endpoint"),
        ({"jwt": {"jwks_url": "ftp://127.0.0.1"}}, "jwt.jwks_url"),
        ({"server": {"host": "192.0.2.1"}, "auth": {"allow_anonymous": True}, "port": 1}, ""),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_setting_that_cannot_be_used(command: str, settings: Json, path: str, files: Path, run: Run) -> None:
    """Files that are not there, addresses of others and schemes of other protocols keep both from saying ok."""
    authority = Authority(files)
    text = json.dumps(settings).replace("CERT", authority.cert_file).replace("KEY", authority.key_file)
    found = json.loads(text)
    if found.pop("port", None):
        found["server"]["port"] = free_port()
    assert path in refusal(run(command, *write(files, found)))


@pytest.mark.parametrize(
    ("tls", "key"),
    [
        ({"caFile": "none.pem"}, "tls.caFile"),
        ({"caFile": "t.yaml"}, "tls.caFile"),
        ({"certFile": "none.pem"}, "tls.certFile"),
        ({"certFile": "CERT", "keyFile": "none.pem"}, "keyFile"),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve", "stdio"])
def test_a_file_of_an_engine_that_cannot_be_used(command: str, tls: Json, key: str, files: Path, run: Run) -> None:
    """It is told with its place in the registry and the id of the engine; a disabled engine needs no files."""
    tls = json.loads(json.dumps(tls).replace("CERT", Authority(files).cert_file))
    told = refusal(run(command, *write(files, {}, {"id": "a", "url": "http://h"}, {**SECURE, "tls": tls})))
    assert "r.json: 1 fault" in told
    assert "engines[1]." in told
    assert key in told
    assert "engine 'e': engines[1]." in told
    assert run("check", *write(files, {}, {**SECURE, "tls": tls, "enabled": False})).exit_code == 0


def test_what_only_building_finds_fails_the_check(files: Path, run: Run) -> None:
    """The check builds all that `serve` builds: what a library refuses only there is told before the start."""
    told = refusal(run("check", *write(files, {"state": {"url": "redis://127.0.0.1?socket_timeout=abc"}})))
    assert "socket_timeout" in told
    assert "Traceback" not in told


def test_all_faults_are_told_at_once(files: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of settings and registry, by `check` and by `serve`."""
    monkeypatch.setitem(sys.modules, "redis", None)  # type: ignore[arg-type]
    settings = {"state": {"url": "redis://127.0.0.1"}, "server": {"host": "0.0.0.0"}}
    words = write(files, settings, {**SECURE, "tls": {"caFile": "none.pem"}})
    for command in ("check", "serve"):
        told = refusal(run(command, *words))
        assert all(path in told for path in ("state.url", "auth.mode", "engines[0].tls.caFile")), told


def test_a_port_in_use_is_a_warning(files: Path, run: Run) -> None:
    """The gateway that is running may have it, so the check passes; a second one could not start."""
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = write(files, {"server": {"port": port}})
        result = run("check", *words)
        assert result.exit_code == 0
        assert f"warning: server.port: 127.0.0.1:{port} cannot be opened: Address already in use" in result.stderr
        assert "cannot serve: Address already in use" in refusal(run("serve", *words))


def test_a_program_that_is_not_found_is_a_warning(files: Path, run: Run) -> None:
    """The gateway starts without that engine."""
    result = run("check", *write(files, {}, {"id": "a", "command": ["no-such-program-7f3a"]}))
    assert result.exit_code == 0
    assert result.stderr == "warning: engines[0].command: the program 'no-such-program-7f3a' is not found\n"


def test_connect_finds_a_dead_redis(files: Path, run: Run) -> None:
    """With `--connect` a Redis that does not answer fails the check; without, nobody is asked."""
    words = write(files, {"state": {"url": f"redis://127.0.0.1:{free_port()}"}})
    assert run("check", *words).exit_code == 0
    assert "error: state.url: connection refused" in refusal(run("check", "--connect", *words))


def issuer(status: int, body: bytes) -> ThreadingHTTPServer:
    """Answers every request so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


KEY = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "k"}


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (404, b"{}", "it answers with HTTP 404 instead of 200"),
        (200, b"<html>", "contains no usable key"),
        (200, b'{"keys": []}', "contains no usable key"),
        (200, json.dumps({"keys": [KEY]}).encode(), None),
    ],
)
def test_connect_looks_at_the_issuers_keys(status: int, body: bytes, wanted: str | None, files: Path, run: Run) -> None:
    """With `--connect` keys that cannot be had fail the check."""
    with issuer(status, body) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/jwks"
        result = run("check", "--connect", *write(files, {**TOKENS, "jwt": {**JWT, "jwks_url": url}}))
        server.shutdown()
        thread.join()
    if wanted is None:
        assert result.exit_code == 0, result.stderr
        assert "ok: jwt.jwks_url: it answers" in result.stdout
    else:
        assert f"error: jwt.jwks_url: {wanted}" in refusal(result) or wanted in result.stderr


def test_connect_tells_why_the_issuer_is_not_reached(files: Path, run: Run) -> None:
    """As for any other server: refused, unknown, not trusted."""
    url = f"http://127.0.0.1:{free_port()}/jwks"
    told = refusal(run("check", "--connect", *write(files, {**TOKENS, "jwt": {**JWT, "jwks_url": url}})))
    assert f"error: jwt.jwks_url: nothing listens at {url.removesuffix('/jwks')}" in told
