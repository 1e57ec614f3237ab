"""The chart as Helm itself renders it: the same as the kustomize base, and what its values change."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.settings.sources import load_registry
from tests.support.deployment import (
    DEPLOY,
    KUBERNETES,
    PROJECT,
    by_kind,
    documents,
    pod_of,
    read,
    rendered,
    rules,
    settings_of,
)

ENGINES = [{"id": "docs", "url": "http://docs-engine:8000/rcp"}]
TENANTS = {"search-team": {"engines": ["docs"]}}
WHOLE = {
    "registry": {"engines": ENGINES},
    "tenants": {"content": TENANTS},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
OPERATOR = {"ServiceMonitor", "PrometheusRule"}

Json = dict[str, Any]


@cache
def _manifests(written: str) -> dict[str, Json]:
    files = rendered(json.loads(written))
    return by_kind([one for name, text in files.items() if name.endswith(".yaml") for one in documents(text)])


def manifests(values: Json) -> dict[str, Json]:
    """What the chart makes of these values, by kind."""
    return _manifests(json.dumps(values))


def test_helm_has_no_complaint() -> None:
    """`helm lint --strict` finds no error and no warning."""
    report = rendered(WHOLE, lint=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("values", [{}, WHOLE], ids=["defaults", "whole"])
def test_it_has_the_form_that_kubernetes_wants(values: Json) -> None:
    """Whatever is rendered passes the schema of its kind."""
    for kind, manifest in manifests(values).items():
        if kind not in OPERATOR:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_it_is_the_same_as_the_base() -> None:
    """Pod, autoscaler and policy are those of deploy/kubernetes/base, but for names, labels and the pull policy."""
    chart = manifests(WHOLE)
    pod, container = pod_of(chart["Deployment"])
    base_pod, base_container = pod_of(read("kubernetes/base/deployment.yaml"))
    del container["imagePullPolicy"]
    for key in ("ports", "envFrom", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"):
        assert container[key] == base_container[key], key
    assert container["volumeMounts"] == base_container["volumeMounts"]
    for key in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert pod[key] == base_pod[key]
    base_scaler = read("kubernetes/base/horizontalpodautoscaler.yaml")["spec"]
    scaler = chart["HorizontalPodAutoscaler"]["spec"]
    assert {**scaler, "scaleTargetRef": None} == {**base_scaler, "scaleTargetRef": None}
    base_policy = read("kubernetes/base/networkpolicy.yaml")["spec"]
    assert {**chart["NetworkPolicy"]["spec"], "podSelector": None} == {**base_policy, "podSelector": None}
    assert chart["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_everything_means_the_same_pods() -> None:
    """What selects pods selects those of this release, and all names are its own."""
    chart = manifests(WHOLE)
    spec = chart["Deployment"]["spec"]
    wanted = spec["selector"]["matchLabels"]
    assert wanted == {"app.kubernetes.io/name": "rcp-gateway", "app.kubernetes.io/instance": "search"}
    assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    assert chart["Service"]["spec"]["selector"] == wanted
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        assert chart[kind]["spec"]["selector"]["matchLabels"] == wanted
    assert chart["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == wanted
    assert all(manifest["metadata"]["name"].startswith("search-rcp-gateway") for manifest in chart.values())
    assert chart["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "search-rcp-gateway"


def test_its_files_can_be_served(tmp_path: Path) -> None:
    """The gateway accepts registry, settings and tenants as the chart writes them."""
    chart = manifests(WHOLE)
    (tmp_path / "rcp.json").write_text(chart["ConfigMap"]["data"]["rcp.json"])
    assert [engine.id for engine in load_registry(tmp_path / "rcp.json", {}).registry.engines] == ["docs"]
    settings = settings_of(tmp_path, yaml.safe_load(chart["ConfigMap"]["data"]["gateway.yaml"]))
    pod, container = pod_of(chart["Deployment"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.auth.tenants_file == f"{mounts['tenants']}/tenants.yaml"
    assert yaml.safe_load(chart["Secret"]["stringData"]["tenants.yaml"]) == {"tenants": TENANTS}
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == [chart["Secret"]["metadata"]["name"]]


def test_what_is_there_already_can_be_used() -> None:
    """A Secret of tenants made elsewhere is mounted, none is rendered, and without autoscaling the number is fixed."""
    chart = manifests(
        {
            "tenants": {"existingSecret": "ours"},
            "autoscaling": {"enabled": False},
            "replicas": 4,
            "networkPolicy": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
            "image": {"repository": "registry.example/rcp-gateway", "tag": "2.0.0"},
        }
    )
    assert set(chart) == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}
    pod, container = pod_of(chart["Deployment"])
    assert {"name": "tenants", "secret": {"secretName": "ours"}} in pod["volumes"]
    assert chart["Deployment"]["spec"]["replicas"] == 4
    assert container["image"] == "registry.example/rcp-gateway:2.0.0"


def test_the_operator_gets_the_rules() -> None:
    """The rules are those of deploy/prometheus, their templates untouched, and the key is where it is said to be."""
    chart = manifests(WHOLE)
    assert [rule for group in chart["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]] == rules()
    (endpoint,) = chart["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "rcp-gateway-metrics"
    open_ = manifests({"monitoring": {"serviceMonitor": {"enabled": True, "tokenSecret": ""}}})
    assert "authorization" not in open_["ServiceMonitor"]["spec"]["endpoints"][0]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"replcas": 3}, "replcas"),
        ({"autoscaling": {"minReplicas": 0}}, "minReplicas"),
        ({"registry": {"engines": [{"url": "http://x/rcp"}]}}, "id"),
    ],
)
def test_a_slip_in_the_values_is_named(values: Json, key: str) -> None:
    """Helm refuses values that the chart does not know, and says which."""
    with pytest.raises(ValueError, match=key):
        rendered(values)


def test_the_values_in_the_documents_are_values() -> None:
    """What docs/guides/kubernetes.md shows for Helm is rendered, with its engine and what the operator reads."""
    page = (PROJECT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    chart = manifests(yaml.safe_load(block))
    assert json.loads(chart["ConfigMap"]["data"]["rcp.json"])["engines"][0]["id"] == "docs"
    assert set(chart) >= OPERATOR
    assert "Secret" not in chart


def test_versions_agree() -> None:
    """Chart, package and the overlay's image are of one version."""
    chart = read("helm/rcp-gateway/Chart.yaml")
    assert f'version = "{chart["appVersion"]}"' in (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    overlay = read("kubernetes/overlays/production/kustomization.yaml")
    assert overlay["images"][0]["newTag"] == chart["appVersion"]


def test_every_value_is_in_the_schema() -> None:
    """values.yaml and values.schema.json know the same keys."""
    schema = json.loads((DEPLOY / "helm/rcp-gateway/values.schema.json").read_text(encoding="utf-8"))
    assert set(read("helm/rcp-gateway/values.yaml")) == set(schema["properties"]) - {"global"}
