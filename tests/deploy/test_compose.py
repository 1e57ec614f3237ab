"""docker-compose.yml: everything on one machine, sealed, on loopback, and each part finds the others."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings.sources import load_registry
from tests.support.deployment import DEPLOY, PROJECT, read, said_by, settings_of

COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
GATEWAYS = ("gateway-1", "gateway-2")


def test_it_keeps_to_the_compose_specification() -> None:
    """The file passes the schema of the Compose Specification."""
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    said = said_by(*check, PROJECT / "docker-compose.yml")
    assert "validation done" in said


def test_everything_is_there() -> None:
    """Two gateways behind nginx, Redis, the demo engines, and what watches them."""
    assert set(SERVICES) == {*GATEWAYS, "nginx", "redis", "engines", "stdlib", "concepts", "prometheus", "grafana"}
    assert SERVICES["gateway-1"] == SERVICES["gateway-2"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_nothing_else(name: str) -> None:
    """A read-only root, no capability, no way to more; its image is built here or pinned to a version."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "build" in service or not service["image"].endswith((":latest", ":stable"))
    assert ":" in service["image"]


def test_only_this_machine_reaches_it() -> None:
    """Every published port is one of loopback."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == [f"127.0.0.1:{port}:{port}" for port in (3000, 8080, 9090)]


def test_every_file_that_is_mounted_is_there() -> None:
    """A path on the left of a mount exists, and is mounted to be read only; named volumes are declared."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, mode = volume.partition(":")[0], *volume.rpartition(":")[1:]
            if source.startswith("."):
                assert (PROJECT / source).exists(), source
                assert mode == "ro", volume
            else:
                assert source in COMPOSE["volumes"]


def test_what_a_service_needs_is_started_first() -> None:
    """Each name under depends_on and network_mode is a service."""
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= set(SERVICES)
        assert service.get("network_mode", "service:nginx").removeprefix("service:") in SERVICES


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_starts_with_what_it_is_given(name: str, tmp_path: Path) -> None:
    """Its environment holds settings that there are, and it has time enough to drain."""
    service = SERVICES[name]
    settings = settings_of(tmp_path, {}, service["environment"])
    assert settings.auth.allow_anonymous is True
    needed = settings.server.drain_seconds + settings.server.grace_seconds + 7
    assert int(service["stop_grace_period"].rstrip("s")) > needed
    assert service["environment"]["RCP_GATEWAY__STATE__URL"] == "redis://redis:6379/0"


def test_the_registry_finds_the_engines() -> None:
    """Each HTTP engine of deploy/demo is reached through the nginx of its network, which hands on to it."""
    (mount,) = SERVICES["gateway-1"]["volumes"]
    assert mount == "./deploy/demo:/srv/config:ro"
    engines = {entry.id: entry for entry in load_registry(DEPLOY / "demo" / "rcp.json", {}).registry.engines}
    assert set(engines) == {"stdlib", "concepts", "packages"}
    config = (DEPLOY / "nginx" / "engines.conf").read_text(encoding="utf-8")
    for name, outside in (("stdlib", 9101), ("concepts", 9102)):
        service = SERVICES[name]
        assert engines[name].url == f"http://engines:{outside}/rcp"
        assert service["network_mode"] == "service:engines"
        assert service["entrypoint"] == ["python", "-m", f"app.demo.{name}"]
        block = config.split(f"listen {outside};", 1)[1].split("server {", 1)[0]
        assert f"proxy_pass http://127.0.0.1:{service['command'][-1]};" in block
    assert engines["packages"].command == ["python", "-m", "app.demo.packages"]


def test_the_rest_finds_the_gateways() -> None:
    """nginx hands on to both, and Prometheus asks each of them."""
    conf = (DEPLOY / "nginx" / "gateway.conf").read_text(encoding="utf-8")
    (scrape,) = read("prometheus/prometheus.yml")["scrape_configs"]
    for name in GATEWAYS:
        assert f"server {name}:8080 " in conf
        assert f"{name}:8080" in scrape["static_configs"][0]["targets"]
    rules = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in read("prometheus/prometheus.yml")["rule_files"]} <= rules
