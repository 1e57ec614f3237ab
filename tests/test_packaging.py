"""What is shipped: package, image, compose file and the script for a clean machine, as far as text can tell."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings.source import load_registry

PROJECT = Path(__file__).parents[1]
DOCKERFILE = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text(encoding="utf-8"))
PYPROJECT: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (PROJECT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions as (word, rest), without comments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word.upper(), rest) for word, rest in words]


def all_of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def normalised(requirement: str) -> str:
    """The name in a requirement, as package indexes compare it."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_the_base_image_is_pinned_and_slim() -> None:
    """One Python base, down to its patch release, for building and running."""
    (base,) = all_of("ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", base)
    outside = [stage.split()[0] for stage in all_of("FROM") if stage.split()[0] not in {"build", "compiled", "runtime"}]
    assert set(outside) == {"${PYTHON_IMAGE}"}


def test_the_default_image_holds_no_demo() -> None:
    """The last stage is the gateway; what the demo needs is in a stage of its own."""
    stages = [stage.split()[-1] for stage in all_of("FROM")]
    assert stages == ["build", "compiled", "build-demo", "runtime", "demo", "gateway"]
    assert DOCKERFILE.rstrip().endswith("COPY --from=compiled /opt/rcp-gateway /opt/rcp-gateway")
    installs = [rest for rest in all_of("RUN") if '"pip", "install"' in rest]
    assert ["[demo]" in rest for rest in installs] == [False, False, True]
    assert all("requirements.lock" in rest for rest in installs)


def test_the_images_hold_machine_code_and_no_compiler() -> None:
    """The hot rooms are compiled where the compilers are, outside of the folder that the images copy."""
    runs = all_of("RUN")
    assert json.loads(runs[-2]) == ["/opt/rcp-gateway/bin/rcp-gateway", "compile"]
    (compilers,) = [json.loads(rest) for rest in runs if "mypy" in rest]
    target = compilers[compilers.index("--target") + 1]
    assert f"PYTHONPATH={target}" in all_of("ENV")
    assert not target.startswith("/opt/rcp-gateway")


def test_it_runs_as_nobody_in_particular() -> None:
    """A numeric user that is not root, set before the entry point."""
    (user,) = all_of("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)


def test_no_shell_stands_between_a_signal_and_the_gateway() -> None:
    """Entry point, command, health check and build steps are in exec form."""
    for word in ("ENTRYPOINT", "CMD", "RUN"):
        for rest in all_of(word):
            assert isinstance(json.loads(rest), list), rest
    assert json.loads(all_of("ENTRYPOINT")[0]) == ["rcp-gateway"]
    assert json.loads(all_of("CMD")[0])[:3] == ["serve", "--host", "0.0.0.0"]
    (check,) = all_of("HEALTHCHECK")
    assert isinstance(json.loads(check.partition("CMD ")[2]), list)


def test_nothing_is_written_at_run_time() -> None:
    """The root file system may be read-only: no bytecode, no volume, nothing fetched by ADD."""
    assert any("PYTHONDONTWRITEBYTECODE=1" in rest for rest in all_of("ENV"))
    assert all_of("VOLUME") == all_of("ADD") == []
    assert all_of("EXPOSE") == ["8080"]
    assert any("org.opencontainers.image.title" in rest for rest in all_of("LABEL"))


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_asks_livez(status: int | None, code: int) -> None:
    """It exits 0 for a gateway that answers 200 and otherwise 1, whatever proxies the environment names."""
    (check,) = all_of("HEALTHCHECK")
    python, dash_c, program = json.loads(check.partition("CMD ")[2])
    assert (python, dash_c) == ("python", "-c")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        checking = subprocess.Popen(
            [sys.executable, dash_c, program.replace("8080", str(port))],
            env=os.environ | {"http_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9"},
            stderr=subprocess.DEVNULL,
        )
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1000).startswith(b"GET /livez ")
            if status is not None:
                connection.sendall(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
        assert checking.wait(20) == code


def test_what_the_build_copies_is_there_and_not_ignored() -> None:
    """Every file that the Dockerfile copies exists, and .dockerignore lets it through and nothing else."""
    copied = {word for rest in all_of("COPY") if "--from" not in rest for word in rest.split()[:-1]}
    assert all((PROJECT / name).exists() for name in copied)
    lines = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_compose_starts_the_demo() -> None:
    """The gateway and one container for each HTTP engine, all on read-only roots, published on loopback alone."""
    services = COMPOSE["services"]
    assert set(services) == {"gateway", "stdlib", "concepts"}
    assert services["gateway"]["ports"] == ["127.0.0.1:8080:8080"]
    targets = {stage.split()[-1] for stage in all_of("FROM")}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["target"] in targets


def test_compose_and_its_registry_agree() -> None:
    """Each engine listens, in the gateway's network, where the registry looks for it."""
    (mount,) = COMPOSE["services"]["gateway"]["volumes"]
    folder, target, mode = mount.split(":")
    assert (target, mode) == ("/srv/config", "ro")
    engines = {entry.id: entry for entry in load_registry(PROJECT / folder / "rcp.json", {}).registry.engines}
    assert set(engines) == {"stdlib", "concepts", "packages"}
    for name in ("stdlib", "concepts"):
        service = COMPOSE["services"][name]
        assert service["network_mode"] == "service:gateway"
        assert service["entrypoint"] == ["python", "-m", f"app.demo.{name}"]
        assert engines[name].url == f"http://127.0.0.1:{service['command'][-1]}/rcp"
    assert engines["packages"].command == ["python", "-m", "app.demo.packages"]


def test_every_dependency_is_locked() -> None:
    """The lock pins each direct dependency to one version, and holds no address."""
    pins = dict(line.split("==") for line in LOCK if line and not line.startswith("#"))
    locked = {normalised(name) for name in pins}
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = {
        normalised(entry)
        for entry in (*PYPROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"], *extras["compile"])
    }
    assert wanted - locked == set()
    assert not any("://" in line or "@" in line for line in LOCK)


def test_the_demo_extra_is_all_that_the_demo_needs() -> None:
    """The SDK and scikit-learn come with the extra and not with the gateway."""
    demo = {normalised(entry) for entry in PYPROJECT["project"]["optional-dependencies"]["demo"]}
    assert demo == {"rcp-protocol", "scikit-learn"}
    assert demo.isdisjoint(map(normalised, PYPROJECT["project"]["dependencies"]))


def test_the_script_for_a_clean_machine_does_what_the_readme_says() -> None:
    """It can be executed, parses, stops at the first failure, and ends with the README's test command."""
    script = PROJECT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], timeout=10).returncode == 0
    assert "set -euo pipefail" in text
    assert re.findall(r"^make (\w+)", text, re.MULTILINE) == ["install", "check", "compile", "test"]
    assert text.rstrip().endswith("make test")


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"])
def test_the_papers_are_there(name: str) -> None:
    """A project that is passed on says what it is, how it changed and what one may do with it."""
    assert (PROJECT / name).stat().st_size > 500


def test_the_console_is_shipped() -> None:
    """Every file of the console is named as data of the package, and nothing else lies there."""
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["app"]
    shipped = {path.name for pattern in patterns for path in (PROJECT / "app").glob(pattern)}
    assert shipped == {path.name for path in (PROJECT / "app" / "console").iterdir()}
    assert shipped == {"index.html", "console.css", "console.js"}
