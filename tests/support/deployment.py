"""What deploy/ may speak of: metrics, settings and alerts that there are, and the programs that check its files."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from app.settings.schema import GatewaySettings
from app.settings.sources import load_settings
from app.telemetry.metrics import Metrics

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
KUBERNETES = "1.32"
"""The version whose schemas the manifests are held to."""

Json = dict[str, Any]


def program(name: str) -> str:
    """Where a program of the system is; the test is skipped where it is not, and says which package has it."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        packages = {"promtool": "prometheus", "kubectl": "kubectl, 1.27 or newer", "systemd-analyze": "systemd"}
        package = packages.get(name, name)
        pytest.skip(f"needs {name}: install {package}")
    return found


def said_by(*command: str | Path, check: bool = True) -> str:
    """What a command prints on either stream; it must end well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(text: str) -> list[Json]:
    """The documents of a YAML text, empty ones left out."""
    return [document for document in yaml.safe_load_all(text) if document]


def read(path: str) -> Any:
    """A YAML or JSON file of deploy/."""
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


@cache
def metrics() -> frozenset[str]:
    """The name of every series that the gateway offers, as queries write it."""
    counted = Metrics("0")
    counted.watch_engines(list)
    found: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", generate_latest(counted.registry).decode(), re.MULTILINE):
        found.add(name)
        if kind in ("histogram", "summary"):
            found |= {f"{name}_{ending}" for ending in ("bucket", "count", "sum")[kind == "summary" :]}
    return frozenset(found)


def rules() -> list[Json]:
    """Every rule of deploy/prometheus, recording and alerting."""
    return [
        rule for file in ("recording.yml", "alerts.yml") for group in read(f"prometheus/{file}")["groups"]
        for rule in group["rules"]
    ]  # fmt: skip


def alerts() -> dict[str, Json]:
    """The alerts by their names."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def failed_auth(query: str) -> set[str]:
    """What a query names of ours and nobody offers."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    return set(re.findall(r"\brcp_gateway[\w:]*", query)) - metrics() - recorded


def settings_of(folder: Path, written: Json, environ: Mapping[str, str] | None = None) -> GatewaySettings:
    """The settings of a deployment: what its gateway.yaml holds and its environment says, faults raised."""
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(written), encoding="utf-8")
    return load_settings(file, environ or {})


def rendered(values: Json | None = None, *, release: str = "search", lint: bool = False) -> Any:
    """What Helm makes of the chart, path -> text, or what it says of it; asked in a process of its own, being Go."""
    pytest.importorskip("helm_python", reason="Helm as a library is there for Linux on x86_64 only")
    question = {"values": values, "name": release, "lint": lint, "chart": str(DEPLOY / "helm" / "rcp-gateway")}
    done = subprocess.run(
        [sys.executable, "-c", _ASK_HELM], input=json.dumps(question), capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


_ASK_HELM = f"""
import json, sys
import helm_python as helm
asked = json.load(sys.stdin)
if asked["lint"]:
    said = helm.lint(asked["chart"], values=asked["values"], strict=True, kube_version="v{KUBERNETES}.0")
else:
    with helm.Chart.load(asked["chart"]) as chart:
        chart.validate_schema(asked["values"])
        said = chart.render(values=asked["values"], name=asked["name"], namespace="rcp")
json.dump(said, sys.stdout)
"""


REDIS = "redis"


def by_kind(manifests: list[Json]) -> dict[str, Json]:
    """The manifests by their kinds, no kind twice; those of Redis as `redis Service`, a generated key as `key`."""
    found = {}
    for manifest in manifests:
        metadata, name = manifest["metadata"], manifest["kind"]
        if metadata.get("labels", {}).get("app.kubernetes.io/name") == REDIS:
            name = f"{REDIS} {name}"
        elif name == "Secret" and metadata["name"].endswith("-key"):
            name = "key"
        assert name not in found
        found[name] = manifest
    return found


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def unrestricted(pod: Json) -> list[str]:
    """What the pod security standard `restricted` forbids of this pod (the checks of Kubernetes 1.32, for Linux)."""
    own = pod.get("securityContext", {})
    faults = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    faults += [f"volume {one['name']}" for one in pod.get("volumes", ()) if not (one.keys() - {"name"}) <= VOLUMES]
    faults += [f"sysctl {one['name']}" for one in own.get("sysctls", ())]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        context = {**own, **container.get("securityContext", {})}
        checks = {
            "privileged": not context.get("privileged"),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": "ALL" in context.get("capabilities", {}).get("drop", ()),
            "capabilities.add": set(context.get("capabilities", {}).get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
            "procMount": context.get("procMount", "Default") == "Default",
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        faults += [f"{container['name']}: {name}" for name, holds in checks.items() if not holds]
    return faults


def pod_of(deployment: Json) -> tuple[Json, Json]:
    """The pod of a Deployment, and its one container."""
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def walk(value: Any) -> Iterator[Any]:
    """A JSON value and all that it holds."""
    yield value
    for held in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(held)
