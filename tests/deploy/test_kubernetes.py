"""The manifests as kustomize renders them: of the right form, sealed, patient, and fit for the gateway they start."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.settings.sources import load_registry
from app.settings.tenants_file import tenants_in
from tests.support.deployment import (
    DEPLOY,
    KUBERNETES,
    REDIS,
    by_kind,
    documents,
    pod_of,
    program,
    said_by,
    settings_of,
    unrestricted,
)

KINDS = {
    *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"),
    *("Service", "ServiceAccount"),
}
OPERATOR = {"ServiceMonitor", "PrometheusRule"}
FOLDERS = {
    "base": {*KINDS, "Secret"},
    "overlays/production": {*KINDS, *OPERATOR, "Namespace", "Secret"}
    | {f"{REDIS} {kind}" for kind in ("Deployment", "Service", "NetworkPolicy")},
}

Json = dict[str, Any]


@cache
def manifests(folder: str) -> dict[str, Json]:
    """What kustomize makes of a folder, by kind."""
    return by_kind(documents(said_by(program("kubectl"), "kustomize", DEPLOY / "kubernetes" / folder)))


@pytest.fixture(params=FOLDERS)
def found(request: pytest.FixtureRequest) -> dict[str, Json]:
    """The manifests of one folder."""
    return manifests(request.param)


@pytest.mark.parametrize(("folder", "kinds"), FOLDERS.items())
def test_everything_is_rendered(folder: str, kinds: set[str]) -> None:
    """The base is whole in itself; the overlay adds namespace, a Redis and what the Prometheus operator reads."""
    assert set(manifests(folder)) == kinds


def test_they_have_the_form_that_kubernetes_wants(found: dict[str, Json]) -> None:
    """Each passes the schema of its kind, in which no unknown field is allowed."""
    for kind, manifest in found.items():
        if kind not in OPERATOR:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_what_is_forbidden_is_seen() -> None:
    """The check of pod security finds what the standard forbids."""
    pod, container = pod_of(json.loads(json.dumps(manifests("base")["Deployment"])))
    assert unrestricted(pod) == []
    del pod["securityContext"]["runAsNonRoot"]
    pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    container["securityContext"]["capabilities"]["add"] = ["SYS_ADMIN"]
    assert unrestricted(pod) == ["volume host", "gateway: capabilities.add", "gateway: runAsNonRoot"]


def test_a_slip_is_seen() -> None:
    """The schemas would notice a misspelt field."""
    deployment = json.loads(json.dumps(manifests("base")["Deployment"]))
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


def test_the_files_stand_alone() -> None:
    """Each file of the base is a manifest of the right form even before kustomize has touched it."""
    for file in (DEPLOY / "kubernetes" / "base").glob("*.yaml"):
        for manifest in documents(file.read_text(encoding="utf-8")):
            if manifest["kind"] != "Kustomization":
                kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_gateway_can_do_nothing_else(found: dict[str, Json]) -> None:
    """What the `restricted` pod security standard wants, a read-only root and no token of the cluster."""
    deployments = [manifest for manifest in found.values() if manifest["kind"] == "Deployment"]
    assert [unrestricted(pod_of(deployment)[0]) for deployment in deployments] == [[]] * len(deployments)
    pod, container = pod_of(found["Deployment"])
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"]["cpu"]
    assert container["resources"]["limits"]["memory"]


def test_it_has_time_to_drain(found: dict[str, Json], tmp_path: Path) -> None:
    """It is killed only after draining and grace, and not ready is noticed while it still serves."""
    settings = settings_of(tmp_path, yaml.safe_load(found["ConfigMap"]["data"]["gateway.yaml"]))
    drain, grace = settings.server.drain_seconds, settings.server.grace_seconds
    pod, container = pod_of(found["Deployment"])
    assert pod["terminationGracePeriodSeconds"] > drain + grace + 7
    probe = container["readinessProbe"]
    assert (probe["periodSeconds"] + probe["timeoutSeconds"]) * probe["failureThreshold"] < drain
    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_probes_ask_what_they_are_for(found: dict[str, Json]) -> None:
    """Alive is /livez, ready is /readyz: an engine that is down never restarts a gateway."""
    _, container = pod_of(found["Deployment"])
    asked = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    (port,) = container["ports"]
    assert {container[name]["httpGet"]["port"] for name in asked} == {port["name"]}
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_its_files_can_be_served(found: dict[str, Json], tmp_path: Path) -> None:
    """The gateway accepts registry and settings of the ConfigMap, and the tenants are where the settings look."""
    data = found["ConfigMap"]["data"]
    assert set(data) == {"rcp.json", "gateway.yaml"}
    (tmp_path / "rcp.json").write_text(data["rcp.json"])
    registry = load_registry(tmp_path / "rcp.json", {"DOCS_TOKEN": "t"}).registry
    settings = settings_of(tmp_path, yaml.safe_load(data["gateway.yaml"]))
    pod, container = pod_of(found["Deployment"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.auth.mode == ["keys"]
    assert settings.auth.tenants_file == f"{mounts['tenants']}/tenants.yaml"
    assert mounts["config"] == "/srv/config"
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
    assert settings.state.shared == (f"{REDIS} Service" in found)
    text = base64.b64decode(found["Secret"]["data"]["tenants.yaml"]).decode()
    tenants = tenants_in("tenants.yaml", yaml.safe_load(text))
    assert tenants.unknown_engines(engine.id for engine in registry.engines) == []


def test_everything_means_the_same_pods(found: dict[str, Json]) -> None:
    """Service, budget, policy and spreading select the pods of the Deployment, and the autoscaler the Deployment."""
    spec = found["Deployment"]["spec"]
    wanted = spec["selector"]["matchLabels"]
    assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"] == wanted
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == wanted
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == wanted
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert [rule["topologyKey"] for rule in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert all(rule["labelSelector"]["matchLabels"] == wanted for rule in spread)
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", found["Deployment"]["metadata"]["name"])
    assert found["HorizontalPodAutoscaler"]["spec"]["minReplicas"] >= 2
    assert "replicas" not in spec  # else each `apply` would undo what the autoscaler did


def test_the_network_is_narrow(found: dict[str, Json]) -> None:
    """Both directions are restricted, and nobody gets at the address where clouds hand out credentials."""
    spec = found["NetworkPolicy"]["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule["ports"] for rule in spec["ingress"])
    blocks = [to["ipBlock"] for rule in spec["egress"] for to in rule.get("to", ()) if "ipBlock" in to]
    assert {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]} in blocks


def test_prometheus_may_read_its_metrics() -> None:
    """The operator is told where they are and with which key, under a job name that the alerts look for."""
    found = manifests("overlays/production")
    spec = found["ServiceMonitor"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] == found["Service"]["spec"]["ports"][0]["name"]
    assert endpoint["authorization"]["credentials"] == {"name": "rcp-gateway-metrics", "key": "token"}
    assert "rcp-gateway" in found["Service"]["metadata"]["name"]
    groups = found["PrometheusRule"]["spec"]["groups"]
    assert [group["name"] for group in groups] == ["rcp-gateway-recording", "rcp-gateway-alerts"]


def test_the_overlay_says_what_differs() -> None:
    """A namespace for all, an image of a version, and engines of its own."""
    found = manifests("overlays/production")
    settings = yaml.safe_load(found["ConfigMap"]["data"]["gateway.yaml"])
    assert settings["state"]["url"] == f"redis://{found[f'{REDIS} Service']['metadata']['name']}:6379/0"
    spaces = {manifest["metadata"].get("namespace") for kind, manifest in found.items() if kind != "Namespace"}
    assert spaces == {"rcp-gateway"}
    _, container = pod_of(found["Deployment"])
    assert container["image"] == "registry.example/rcp-gateway:0.1.0"
    assert json.loads(found["ConfigMap"]["data"]["rcp.json"])["engines"][0]["required"] is True
    assert found["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == 3
