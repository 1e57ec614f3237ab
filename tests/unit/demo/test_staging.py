"""What a demo consists of."""

import json
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest
import rcp

from app.demo import staging
from app.settings.sources import load_registry, load_settings
from tests.support.ports import free_port


def test_the_files_are_those_of_any_gateway(tmp_path: Path) -> None:
    """Gateway and SDK can read the registry: two engines over HTTP, one over stdio with a namespace."""
    with closing(staging.stage(tmp_path, 8080)) as stage:
        stage.write_files()
        engines = load_registry(stage.registry_file, {}).registry.engines
        assert [(engine.id, engine.kind, engine.id_namespace) for engine in engines] == [
            ("stdlib", "http", None),
            ("concepts", "http", None),
            ("packages", "stdio", "pkg"),
        ]
        assert load_settings(tmp_path / "gateway.yaml", {}).engines.reconnect_max_seconds == 0.5
        assert rcp.Selector.load(str(stage.registry_file)).size == 3


def test_commands_and_registry_speak_of_the_same_ports(tmp_path: Path) -> None:
    """Each HTTP engine listens where the registry says, the gateway where the demo says."""
    with closing(staging.stage(tmp_path, 8080)) as stage:
        stage.write_files()
        entries = {
            entry["id"]: entry for entry in json.loads(stage.registry_file.read_text(encoding="utf-8"))["engines"]
        }
        commands = stage.commands()
        assert list(commands) == ["stdlib", "concepts", "gateway"]
        for name in staging.HTTP_ENGINES:
            assert commands[name] == [sys.executable, "-m", f"app.demo.{name}", "--port", str(stage.engine_ports[name])]
            assert entries[name]["url"] == f"http://127.0.0.1:{stage.engine_ports[name]}/rcp"
        assert commands["gateway"][-2:] == ["--port", "8080"]
        assert entries["packages"]["command"] == [sys.executable, "-m", "app.demo.packages"]


def test_any_free_port_will_do(tmp_path: Path) -> None:
    """Port 0 gives the gateway a free port that no engine has."""
    with closing(staging.stage(tmp_path, 0)) as stage:
        assert [each.getsockname()[1] for each in stage.held] == [*stage.engine_ports.values(), stage.port]
        assert len({stage.port, *stage.engine_ports.values()}) == 3
        assert stage.url == f"http://127.0.0.1:{stage.port}"


def test_a_held_port_is_given_to_nobody_else() -> None:
    """Who is told a held port can listen on it and be reached; the system gives it to nobody who wants any port."""
    (held,) = staging.hold_ports(1)
    port = held.getsockname()[1]
    others = staging.hold_ports(200)
    assert port not in {other.getsockname()[1] for other in others}
    with socket.create_server(("127.0.0.1", port)) as listener, socket.create_connection(("127.0.0.1", port)):
        listener.accept()[0].close()
    for each in (held, *others):
        each.close()


def test_a_taken_port_is_noticed() -> None:
    """Somebody listening takes a port, a listener that left does not, and port 0 is never taken."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert staging.is_taken(port)
    assert not staging.is_taken(port)
    assert not staging.is_taken(0)


def test_a_port_that_we_may_not_use_is_no_taken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other refusal of the system is raised."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(staging.socket, "create_server", refuse)
    with pytest.raises(PermissionError):
        staging.is_taken(80)
