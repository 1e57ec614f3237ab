"""What is shipped: package, image and the script for a clean machine, as far as text and measuring here can tell."""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.running_gateway import PATIENCE

PROJECT = Path(__file__).parents[1]
DOCKERFILE = (PROJECT / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
FOUNDATIONS = "fastapi, httpx2, orjson, prometheus_client, pydantic, structlog, typer, uvicorn, uvloop, yaml"


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
    """One Python for building and running, down to its patch release and the digest of its image."""
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", all_of("ARG")[0])
    outside = [stage.split() for stage in all_of("FROM") if stage.startswith("$")]
    assert outside == [["${PYTHON_IMAGE}", "AS", "wheels"], ["${PYTHON_IMAGE}", "AS", "runtime"]]
    assert {stage.split()[0] for stage in all_of("FROM")} == {"${PYTHON_IMAGE}", "wheels", "install", "runtime"}


def test_the_default_image_holds_no_demo() -> None:
    """The last stage is the gateway with every extra that serving can use; the demo has a stage of its own."""
    stages = [stage.split()[-1] for stage in all_of("FROM")]
    assert stages == ["wheels", "install", "install-demo", "runtime", "demo", "gateway"]
    assert DOCKERFILE.rstrip().endswith("COPY --from=install /opt/rcp-gateway /opt/rcp-gateway")
    installs = [json.loads(rest) for rest in all_of("RUN") if "rcp-gateway[" in rest]
    serving = set(PYPROJECT["project"]["optional-dependencies"]) - NOT_SERVING
    extras = [set(words[-1].removeprefix("rcp-gateway[").strip("]").split(",")) for words in installs]
    assert extras == [serving, serving | {"demo"}]


def test_the_images_install_the_compiled_wheel() -> None:
    """One stage has the compilers and makes wheels in locked versions; the images install nothing else."""
    wheels, _, install = DOCKERFILE.partition(" AS install\n")
    assert "RCP_GATEWAY_COMPILE=1" in wheels
    (locked,) = [rest for rest in all_of("RUN") if "--require-hashes" in rest]
    assert json.loads(locked)[-4:] == ["--requirement", "requirements-image.lock", "--wheel-dir", "/wheels"]
    others = [rest for rest in all_of("RUN") if '"pip"' in rest and rest != locked]
    assert all("--no-index" in rest or "--no-deps" in rest for rest in others)
    assert "--no-index" in install
    assert "[compile" not in install
    assert "COPY app" not in install


NOT_SERVING = {"browser", "compile", "demo", "deploy", "dev", "eval", "mcp", "mcp-clients", "otel"}
"""Extras that a gateway in production has no use for; and `otel`, which would make the image larger than it may be."""

BASE_BYTES = 125e6
"""What python:3.13-slim-bookworm takes, unpacked."""

COMPILED_BYTES = 5e6
"""What the compiled modules take, at most."""


def test_the_image_stays_small(tmp_path: Path) -> None:
    """What is copied into it, stripped as the build strips it, leaves it below 200 MB together with its base."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    serving = [entry for name in set(extras) - NOT_SERVING for entry in extras[name]]
    brought = closure([*PYPROJECT["project"]["dependencies"], *serving])
    assert {"fastapi", "starlette", "h2", "hpack", "cryptography"} <= brought
    assert brought.isdisjoint({"pytest", "mypy", "numpy", "scikit-learn", "helm-python-sdk"})
    files = [path for name in brought for path in files_of(name)]
    files += [path for path in (PROJECT / "app").rglob("*") if path.is_file()]
    size = sum(stripped_size(path, tmp_path) for path in files)
    assert 20e6 < size < 200e6 - BASE_BYTES - COMPILED_BYTES


def closure(requirements: list[str]) -> set[str]:
    """The names of all that these requirements bring here, themselves included."""
    found: set[str] = set()
    pending = [Requirement(requirement) for requirement in requirements]
    while pending:
        requirement = pending.pop()
        name = normalised(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        for entry in map(Requirement, distribution(name).requires or ()):
            if entry.marker is None or any(entry.marker.evaluate({"extra": of}) for of in (*requirement.extras, "")):
                entry.marker = None
                pending.append(entry)
    return found


def files_of(name: str) -> list[Path]:
    """The files of an installed distribution, compiled ones included."""
    found = distribution(name)
    paths = [Path(str(found.locate_file(file))) for file in found.files or ()]
    return [path for path in paths if path.is_file()]


def stripped_size(path: Path, place: Path) -> int:
    """Bytes of a file; of a library those that are left without its symbols, where this machine can strip."""
    strip = shutil.which("strip")
    if path.suffix == ".so" and strip:
        copy = place / "stripped.so"
        subprocess.run([strip, "--strip-unneeded", "-o", copy, path], check=True, timeout=60)
        path = copy
    return path.stat().st_size


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
    labels = " ".join(all_of("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert f"VERSION={PYPROJECT['project']['version']}" in all_of("ARG")


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
        listener.settimeout(PATIENCE)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1000).startswith(b"GET /livez ")
            if status is not None:
                connection.sendall(b"HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\n\r\n" % status)
        assert checking.wait(PATIENCE) == code


def test_what_the_build_copies_is_there_and_not_ignored() -> None:
    """Every file that the Dockerfile copies exists, and .dockerignore lets it through and nothing else."""
    copied = {word for rest in all_of("COPY") if "--from" not in rest for word in rest.split()[:-1]}
    assert all((PROJECT / name).exists() for name in copied)
    lines = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_every_dependency_is_locked() -> None:
    """The lock pins each direct dependency to one version with the hashes of its files, and holds no address."""
    locked = {normalised(name) for name in pins("requirements.lock")}
    extras = PYPROJECT["project"]["optional-dependencies"]
    optional = [entry for extra in extras.values() for entry in extra]
    wanted = {normalised(entry) for entry in (*PYPROJECT["project"]["dependencies"], *optional)}
    assert wanted - locked == set()
    for lock in PROJECT.glob("requirements*.lock"):
        assert not re.search(r"://|@|--index|--find", lock.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements-demo.lock", {"demo"}),
        ("requirements-serve.lock", {"http2", "jwt", "otel", "redis"}),
        ("requirements-image.lock", {"compile", "demo", "example", "http2", "jwt", "redis"}),
    ],
)
def test_the_parts_of_the_lock_are_parts_of_it(lock: str, extras: set[str]) -> None:
    """Each holds what its extras bring, in the versions and with the hashes of requirements.lock: `make lock`."""
    whole, part = pins("requirements.lock"), pins(lock)
    assert part.items() <= whole.items()
    optional = PYPROJECT["project"]["optional-dependencies"]
    direct = [*PYPROJECT["project"]["dependencies"], *(entry for extra in extras for entry in optional[extra])]
    brought = {normalised(entry) for entry in direct}
    assert brought <= {normalised(name) for name in part}
    assert not any("pytest" in name for name in part)


def pins(lock: str) -> dict[str, str]:
    """Name -> version, marker and hashes of every package of a lock file; each has at least one hash."""
    entries = re.split(r"\n(?=\S)", (PROJECT / lock).read_text(encoding="utf-8").strip())
    found = dict(entry.split("==", 1) for entry in entries)
    assert len(found) == len(entries) > 30
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", pinned) for pinned in found.values())
    return found


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
    assert subprocess.run(["bash", "-n", script], timeout=60).returncode == 0
    assert "set -euo pipefail" in text
    assert re.findall(r"^\(?(?:trap '' INT; )?make (\w+)", text, re.MULTILINE) == [
        "install",
        "check",
        "lowest",
        "testwheel",
        "test",
    ]
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


def test_it_starts_quickly(tmp_path: Path) -> None:
    """To its first answer a gateway needs no more than three times the processor time of importing what it stands on.

    Measured against one another, by turns: how much a processor does in a second is another matter on each machine.
    """
    registry = tmp_path / "rcp.json"
    registry.write_text(json.dumps({"engines": []}))
    spent = [(seconds_to_start(registry), seconds_to_import(FOUNDATIONS)) for _ in range(3)]  # the first may compile
    whole, foundations = (min(column) for column in zip(*spent, strict=True))
    assert whole < 3 * foundations


def seconds_to_start(registry: Path) -> float:
    """Processor time of a gateway from its command to its first answer."""
    before = seconds_of_children()
    command = [sys.executable, "-m", "app", "serve", "--registry", str(registry), "--port", "0"]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        heard = next(line for line in gateway.stderr if '"listening"' in line)
        with socket.create_connection(("127.0.0.1", json.loads(heard)["port"]), PATIENCE) as caller:
            caller.sendall(b"GET /livez HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")
            assert caller.recv(100).startswith(b"HTTP/1.1 200 ")
        gateway.kill()
    return seconds_of_children() - before


def seconds_to_import(modules: str) -> float:
    """Processor time of an interpreter that imports these."""
    before = seconds_of_children()
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, timeout=PATIENCE)
    return seconds_of_children() - before


def seconds_of_children() -> float:
    """Processor time of all processes of ours that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def test_no_licence_is_of_the_gpl_family() -> None:
    """docs/reference/dependencies.md lists what a service installs; none of it restricts the licence of the whole."""
    page = (PROJECT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| (.+) \|$", page.split("## Licences", 1)[1], re.MULTILINE)[1:]
    assert len(rows) > 50
    assert [row for row in rows if re.search(r"\bA?GPL|not declared|UNKNOWN", row[1])] == []
