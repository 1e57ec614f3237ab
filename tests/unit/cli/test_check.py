"""Checking files, and whether the engines are there."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from app.protocol.advertisement import Advertisement
from app.protocol.errors import ConnectFailed

Run = Callable[..., Result]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a sound registry in it."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, {"id": "a", "url": "http://h"}, {"id": "b", "command": ["x"], "enabled": False})
    return tmp_path


def _write(files: Path, *engines: dict[str, Any]) -> None:
    (files / "rcp.json").write_text(json.dumps({"engines": engines}))


def test_sound_files_are_told(files: Path, run: Run) -> None:
    """What was read and how much of it, exit code 0."""
    (files / "g.yaml").write_text("log: {level: debug}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("ok: rcp.json: 2 engines (1 disabled), fingerprint ")
    assert second == "ok: g.yaml"


def test_default_files_are_found(files: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options the files in `config/` are read, the settings only if they are there."""
    (files / "config").mkdir()
    (files / "rcp.json").rename("config/rcp.json")
    monkeypatch.setenv("RCP_GATEWAY__SERVER__PORT", "1")
    assert "ok: built-in settings, 1 overridden by the environment" in run("check").stdout
    (files / "config/gateway.yaml").write_text("")
    assert "ok: config/gateway.yaml" in run("check").stdout


def test_the_files_of_the_project_are_sound(run: Run) -> None:
    """The files that come with the gateway pass its own check."""
    assert run("check").exit_code == 0


def test_every_fault_of_both_files_is_told(files: Path, run: Run) -> None:
    """Faults of the registry do not hide those of the settings; exit code 1, nothing but faults on stderr."""
    _write(files, {"id": "a", "url": "http://h", "timeoutms": 5, "headers": {"X": "${UNSET_HERE}"}})
    (files / "g.yaml").write_text("retrieve: {windw_min: 3}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "error: rcp.json: 2 faults",
        "  line 1, engine 'a': engines[0].headers.X: the environment variable UNSET_HERE is not set; "
        "set UNSET_HERE before the start",
        "  line 1, engine 'a': engines[0].timeoutms: unknown key; did you mean 'timeoutMs'?",
        "error: g.yaml: 1 fault",
        "  line 1: retrieve.windw_min: unknown key; did you mean 'window_min'?",
    ]


def test_one_port_for_two_purposes_is_a_fault(files: Path, run: Run) -> None:
    """`metrics.port` must differ from `server.port`."""
    (files / "g.yaml").write_text("{server: {port: 9000}, metrics: {port: 9000}}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert result.exit_code == 1
    assert "metrics.port: is the same as server.port; choose another port" in result.stderr


def test_a_missing_file_is_a_fault(files: Path, run: Run) -> None:
    """A registry that is not there is told like any other fault."""
    result = run("check", "--registry", "nowhere.json")
    assert result.exit_code == 1
    assert "nowhere.json: 1 fault" in result.stderr


def test_unknown_options_are_usage_errors(run: Run) -> None:
    """Usage errors end with 2, so that a script can tell them from faults."""
    assert run("check", "--regsitry", "x").exit_code == 2


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of real handshakes: engines named `down…` fail, the others answer once all have been asked."""
    asked: list[str] = []

    async def probe(entry: Any, settings: Any) -> Advertisement:
        asked.append(entry.id)
        await asyncio.sleep(0)
        if entry.id.startswith("down"):
            raise ConnectFailed("nobody there\x1b[2J")
        return Advertisement({"name": "n", "version": f"{len(asked)}.0"}, {"retrieve": {}, "filter": {}})

    monkeypatch.setattr("app.engines.transport_factory.probe", probe)
    return asked


def test_connect_greets_all_enabled_engines_at_once(files: Path, run: Run, probed: list[str]) -> None:
    """Every enabled engine is asked, concurrently, and told with version and capabilities."""
    _write(files, *({"id": name, "url": "http://h", "enabled": name != "off"} for name in ("a", "b", "off")))
    result = run("check", "--registry", "rcp.json", "--connect")
    assert result.exit_code == 0
    assert probed == ["a", "b"]
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert rows == [
        ["id", "ok", "version", "capabilities", "error"],
        ["a", "yes", "2.0", "filter,", "retrieve"],
        ["b", "yes", "2.0", "filter,", "retrieve"],
    ]


def test_one_engine_that_fails_fails_the_check(files: Path, run: Run, probed: list[str]) -> None:
    """The others are still told; exit code 1."""
    _write(files, {"id": "a", "url": "http://h"}, {"id": "down", "url": "http://h"})
    result = run("check", "--registry", "rcp.json", "--connect")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[4].split() == ["down", "no", "-", "-", "connect:", "nobody", "there", "[2J"]


def test_without_connect_no_engine_is_asked(files: Path, run: Run, probed: list[str]) -> None:
    """Checking files needs no network."""
    run("check", "--registry", "rcp.json")
    assert probed == []


def test_a_reference_that_nobody_fills_in_is_told(files: Path, run: Run) -> None:
    """`${NAME}` in a URL passes for a host name nowhere."""
    _write(files, {"id": "a", "url": "http://h/${NAME}"})
    result = run("check", "--registry", "rcp.json")
    assert result.exit_code == 1
    assert "engines[0].url: ${NAME} is not replaced here, only in header values" in result.stderr


def test_nothing_is_said_of_starting_again(files: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check asks once; when a gateway would start the program again is not told."""

    async def probe(entry: Any, settings: Any) -> Advertisement:
        raise ConnectFailed("started again in 0.1 s: cannot start 'x': No such file")

    monkeypatch.setattr("app.engines.transport_factory.probe", probe)
    _write(files, {"id": "a", "command": ["x"]})
    assert "connect: cannot start 'x'" in run("check", "--registry", "rcp.json", "--connect").stdout


TENANTS = "tenants: {a: {engines: [a, zzz]}, b: {}}"


def test_the_tenants_file_is_checked_as_well(files: Path, run: Run) -> None:
    """How many tenants there are; engines they name that the registry does not have; tenants that can do nothing."""
    (files / "t.yaml").write_text(TENANTS)
    (files / "g.yaml").write_text("{server: {port: 0}, auth: {mode: [keys], tenants_file: t.yaml}}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2] == "ok: t.yaml: 2 tenants, 0 keys"
    warnings = result.stderr.splitlines()
    assert warnings[0] == "warning: line 1: tenants.a.engines[1]: no engine is called 'zzz'"
    assert any("tenants.b: has no engines" in line for line in warnings)
    assert all(line.startswith("warning: line 1: tenants.") for line in warnings)


def test_a_fault_of_the_tenants_file_fails_the_check(files: Path, run: Run) -> None:
    """Like a fault of any other file."""
    (files / "t.yaml").write_text("tenants: {a: {engine: x}}")
    (files / "g.yaml").write_text("{server: {port: 0}, auth: {mode: [keys], tenants_file: t.yaml}}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert result.exit_code == 1
    assert "tenants.a.engine: unknown key; did you mean 'engines'?" in result.stderr


def test_a_gateway_that_would_not_start_is_told(files: Path, run: Run) -> None:
    """Listening for everybody without telling callers apart fails the check."""
    (files / "g.yaml").write_text("server: {host: 0.0.0.0}")
    result = run("check", "--registry", "rcp.json", "--config", "g.yaml")
    assert result.exit_code == 1
    assert "auth.mode: is none, and '0.0.0.0' is reachable from other machines" in result.stderr


def test_one_engine_under_two_ids_is_a_warning(files: Path, run: Run) -> None:
    """Fusion would count it twice; the files are sound all the same."""
    _write(files, {"id": "a", "url": "http://h/rcp"}, {"id": "b", "url": "http://H:80/rcp/"})
    result = run("check", "--registry", "rcp.json")
    assert result.exit_code == 0
    assert "warning: engines 'a' and 'b' have the same address" in result.stderr


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("", ("--connect",), "error: state.url: connection refused"),
        ("?socket_timeout=abc", (), "state.url: has an invalid parameter"),
        ("?nonsense=1", (), "state.url: has an unknown parameter after ?"),
    ],
)
def test_a_redis_that_cannot_be_used(files: Path, run: Run, query: str, options: tuple[str, ...], words: str) -> None:
    """Bad parameters are found without a connection; with --connect Redis is reached. Exit code 1, and no password."""
    _write(files, {"id": "b", "command": ["x"], "enabled": False})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (files / "g.yaml").write_text(f"state: {{url: 'redis://u:SECRET@127.0.0.1:{port}/0{query}'}}")
        result = run("check", "--registry", "rcp.json", "--config", "g.yaml", *options)
    assert result.exit_code == 1
    assert words in " ".join(result.stderr.split())
    assert "SECRET" not in result.output


def test_a_redis_that_is_well(files: Path, run: Run, redis_url: str) -> None:
    """With --connect it is said that Redis can be written to; without, it is not asked."""
    _write(files, {"id": "b", "command": ["x"], "enabled": False})
    (files / "g.yaml").write_text(f"state: {{url: '{redis_url}'}}")
    well = "ok: state.url: Redis is reachable and writable"
    assert well in run("check", "--registry", "rcp.json", "--config", "g.yaml", "--connect").stdout
    assert well not in run("check", "--registry", "rcp.json", "--config", "g.yaml").stdout
