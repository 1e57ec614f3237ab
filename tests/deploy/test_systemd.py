"""The unit of deploy/systemd: what systemd itself says of it, and whether the gateway would start with it."""

import re
from pathlib import Path

import pytest

from app.settings.schema import GatewaySettings
from app.settings.sources import load_settings
from tests.support.deployment import DEPLOY, PROJECT, program, said_by

UNIT = DEPLOY / "systemd" / "rcp-gateway.service"
TEXT = UNIT.read_text(encoding="utf-8")
LINES = TEXT.splitlines()


def values(key: str, lines: list[str] = LINES) -> list[str]:
    """The values of a directive, in order."""
    return [line.partition("=")[2] for line in lines if line.partition("=")[0] == key]


def test_its_exposure_is_low() -> None:
    """`systemd-analyze security` rates it below 3 of 10."""
    said = said_by(program("systemd-analyze"), "security", "--offline=true", "--threshold=30", "--no-pager", UNIT)
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None
    assert float(exposure[1]) < 3


def test_systemd_knows_every_directive(tmp_path: Path) -> None:
    """`systemd-analyze verify` has no complaint once the program is there, and would see a misspelt directive."""
    verified = tmp_path / UNIT.name
    verified.write_text(TEXT.replace("/opt/rcp-gateway/bin/rcp-gateway", "/bin/true"))
    assert said_by(program("systemd-analyze"), "verify", "--man=no", verified) == ""
    verified.write_text(verified.read_text().replace("ProtectSystem=", "ProtectSystems="))
    assert "ProtectSystems" in said_by(program("systemd-analyze"), "verify", "--man=no", verified, check=False)


def environment(lines: list[str], credentials: Path) -> dict[str, str]:
    """The variables that systemd sets, with the folder of the credentials for %d."""
    assigned = [value.strip("'").replace("%d", str(credentials)) for value in values("Environment", lines)]
    return dict(assignment.split("=", 1) for assignment in assigned)


@pytest.mark.parametrize("lines", [LINES, [line.removeprefix("#") for line in LINES]], ids=["as it is", "with TLS"])
def test_the_gateway_understands_its_variables(tmp_path: Path, lines: list[str]) -> None:
    """Tenants and certificates are read where systemd puts the credentials; each credential is used."""
    (tmp_path / "gateway.yaml").write_text("")
    settings = load_settings(tmp_path / "gateway.yaml", environment(lines, tmp_path / "credentials"))
    assert settings.auth.mode == ["keys"]
    files = [settings.auth.tenants_file]
    if settings.server.tls is not None:
        files += [settings.server.tls.cert_file, settings.server.tls.key_file]
    credentials = [value.partition(":")[0] for value in values("LoadCredential", lines)]
    assert files == [f"{tmp_path}/credentials/{name}" for name in credentials]


def test_it_has_time_to_drain() -> None:
    """The service is killed only after the gateway has drained and finished."""
    server = GatewaySettings().server
    assert float(values("TimeoutStopSec")[0]) > server.drain_seconds + server.grace_seconds + 7


def test_its_program_is_where_the_guide_installs_it() -> None:
    """The documented commands create the virtual environment and the files that the unit names."""
    guide = (PROJECT / "docs" / "guides" / "production.md").read_text(encoding="utf-8")
    section = guide.split("**Under systemd.**", 1)[1].split("\n## ", 1)[0]
    assert "python3 -m venv /opt/rcp-gateway" in guide
    assert "deploy/systemd/rcp-gateway.service" in section
    for file in re.findall(r"/etc/rcp-gateway/\S*\w", " ".join(values("ExecStart") + values("LoadCredential"))):
        assert file in section, file
