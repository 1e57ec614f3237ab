"""The chart as Helm itself renders it: the same as the kustomize base, and what its values change."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.api.reload import AT_START, SECTIONS_AT_START
from app.settings.sources import load_registry
from tests.support.deployment import (
    DEPLOY,
    KUBERNETES,
    PROJECT,
    REDIS,
    by_kind,
    documents,
    pod_of,
    read,
    rendered,
    rules,
    settings_of,
    unrestricted,
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


PAGE = (PROJECT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
DOCUMENTED = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
EVERYTHING = {
    **WHOLE,
    "redis": {"enabled": True},
    "tls": {"existingSecret": "certificate"},
    "settings": {"server": {"port": 9000, "workers": 2}, "metrics": {"port": 9100}},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "imagePullSecrets": [{"name": "registry"}],
    "extraEnv": [{"name": "LANG", "value": "C"}],
    "envFrom": [{"configMapRef": {"name": "ours"}}],
    "extraVolumes": [{"name": "notes", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "notes", "mountPath": "/srv/notes"}],
    "podAnnotations": {"c": "d"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
}


@pytest.mark.parametrize("values", [{}, WHOLE, EVERYTHING, *DOCUMENTED], ids=lambda values: "+".join(values) or "none")
def test_it_has_the_form_that_kubernetes_wants(values: Json) -> None:
    """Whatever is rendered passes the schema of its kind, and pods meet the `restricted` security standard."""
    for kind, manifest in manifests(values).items():
        if kind not in OPERATOR:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        if manifest["kind"] == "Deployment":
            assert unrestricted(pod_of(manifest)[0]) == []


def test_it_is_the_same_as_the_base() -> None:
    """Pod, autoscaler and policy are those of deploy/kubernetes/base, but for names, labels and the pull policy."""
    chart = manifests(WHOLE)
    pod, container = pod_of(chart["Deployment"])
    base_pod, base_container = pod_of(read("kubernetes/base/deployment.yaml"))
    del container["imagePullPolicy"]
    for key in ("ports", "envFrom", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"):
        assert container[key] == base_container[key], key
    assert container["volumeMounts"] == base_container["volumeMounts"]
    for key in (
        *("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks"),
    ):
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
            "registry": {"engines": ENGINES},
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


def test_the_redis_is_that_of_kustomize() -> None:
    """The sub-chart and deploy/kubernetes/components/redis run the same pod, under the name that the settings use."""
    chart = manifests({**WHOLE, "redis": {"enabled": True}})
    pod, container = pod_of(chart[f"{REDIS} Deployment"])
    component = documents((DEPLOY / "kubernetes/components/redis/redis.yaml").read_text(encoding="utf-8"))
    other_pod, other = pod_of(component[0])
    del container["imagePullPolicy"]
    assert {**pod, "containers": []} == {**other_pod, "containers": []}
    assert container == other
    settings = yaml.safe_load(chart["ConfigMap"]["data"]["gateway.yaml"])
    assert settings["state"]["url"] == f"redis://{chart[f'{REDIS} Service']['metadata']['name']}:6379/0"


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
        ({"registry": {"engines": [{"id": "a", "url": "http://x/rcp", "timeoutms": 5}]}}, "timeoutms"),
        ({"settings": {"server": {"prot": 80}}}, "prot"),
        ({"settings": {"retrieve": {"deadline_ms": "5s"}}}, "deadline_ms"),
        ({"tenants": {"content": {"team": {"keys": [{"id": "k"}]}}}}, "sha256"),
        ({"global": {"openshift": "yes"}}, "openshift"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"extraVolumeMounts": [{"name": "notes"}]}, "mountPath"),
        ({"registry": {"engines": []}}, "registry.engines is empty"),
        ({"registry": {"engines": [{"id": "a"}]}}, "needs 'url' or 'command'"),
        ({"registry": {"engines": [*ENGINES, *ENGINES]}}, "'docs' is already the id"),
        ({"settings": {"auth": {"mode": ["none"]}}}, "auth.allow_anonymous"),
        ({"settings": {"auth": {"allow_anonymous": True}}, "tenants": {"existingSecret": "x"}}, "tenants are not used"),
        ({"settings": {"auth": {"mode": ["jwt"]}}}, "settings.jwt.issuer is missing"),
        ({"tenants": {"existingSecret": "x", "content": TENANTS}}, "not both"),
        ({"tls": {"existingSecret": "x"}, "settings": {"server": {"tls": {"cert_file": "/x"}}}}, "not both"),
        ({"tls": {"clientCaKey": "ca.crt"}}, "needs tls.existingSecret"),
        ({"redis": {"enabled": True}, "state": {"urlSecret": {"name": "x"}}}, "redis.enabled and state.urlSecret"),
        ({"settings": {"server": {"port": 0}}}, "settings.server.port"),
        ({"settings": {"metrics": {"port": 8080}}}, "settings.metrics.port must differ"),
        ({"settings": {"server": {"handshake": "required", "workers": 2}}}, "shared state"),
        ({"terminationGracePeriodSeconds": 30}, r"must be more than .* \(30\)"),
        ({"autoscaling": {"minReplicas": 20}}, "maxReplicas"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_start_is_refused(values: Json, key: str) -> None:
    """Helm refuses keys that the chart or the gateway does not know, and values that keep the gateway from starting."""
    with pytest.raises(ValueError, match=key):
        rendered(values)


def test_ports_probes_and_times_follow_the_settings() -> None:
    """TLS and ports of the settings are those of container, probes, Service, policy and ServiceMonitor."""
    chart = manifests(EVERYTHING)
    pod, container = pod_of(chart["Deployment"])
    assert container["ports"] == [
        {"name": "https", "containerPort": 9000},
        {"name": "metrics", "containerPort": 9100},
    ]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["port"], asked["scheme"]) == ("https", "HTTPS")
    ports = chart["Service"]["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in ports] == [
        ("https", 443, "https"),
        ("metrics", 9100, "metrics"),
    ]
    callers, scrapers = chart["NetworkPolicy"]["spec"]["ingress"]
    assert [callers["ports"][0]["port"], scrapers["ports"][0]["port"]] == ["https", "metrics"]
    (endpoint,) = chart["ServiceMonitor"]["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")
    assert "authorization" not in endpoint
    target = chart["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["resource"]["target"]
    assert target == {"type": "AverageValue", "averageValue": "1400m"}  # 70 % of a core for each of two workers
    assert {"name": "tls", "secret": {"secretName": "certificate"}} in pod["volumes"]
    assert {"name": "notes", "mountPath": "/srv/notes"} in container["volumeMounts"]
    assert {"configMapRef": {"name": "ours"}} in container["envFrom"]


@pytest.mark.parametrize(
    ("server", "given", "seconds"),
    [
        ({}, None, 45),
        ({"drain_seconds": 60}, None, 95),
        ({"drain_seconds": 0, "grace_seconds": 0}, None, 15),
        ({"grace_seconds": 0.5}, None, 26),
        ({}, 31, 31),
    ],
)
def test_the_grace_period_follows_drain_and_grace(server: Json, given: int | None, seconds: int) -> None:
    """A pod is killed only after its gateway has drained and finished, unless the values give a longer time."""
    chart = manifests({"settings": {"server": server}, "terminationGracePeriodSeconds": given})
    assert pod_of(chart["Deployment"])[0]["terminationGracePeriodSeconds"] == seconds


def test_clients_with_certificates_do_not_lock_out_the_probes() -> None:
    """The kubelet has no client certificate, so probes then only open a connection."""
    chart = manifests({"tls": {"existingSecret": "c", "clientCaKey": "ca.crt"}})
    _, container = pod_of(chart["Deployment"])
    assert container["readinessProbe"]["tcpSocket"] == {"port": "https"}
    tls = yaml.safe_load(chart["ConfigMap"]["data"]["gateway.yaml"])["server"]["tls"]
    assert tls["client_ca_file"] == "/run/secrets/rcp-gateway-tls/ca.crt"


def test_openshift_chooses_the_ids() -> None:
    """No uid, gid or fsGroup is rendered, also for Redis, and names are resolved where OpenShift resolves them."""
    chart = manifests({"global": {"openshift": True}, "redis": {"enabled": True}})
    for kind in ("Deployment", f"{REDIS} Deployment"):
        assert pod_of(chart[kind])[0]["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}
    names = chart["NetworkPolicy"]["spec"]["egress"][0]
    assert names["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "openshift-dns"}


def checksum(settings: Json, **values: Any) -> str:
    """The annotation whose change rolls the pods."""
    template = manifests({"settings": settings, **values})["Deployment"]["spec"]["template"]
    found: str = template["metadata"]["annotations"]["checksum/start-settings"]
    return found


def test_pods_roll_for_settings_that_are_read_at_start() -> None:
    """`auth.mode` and its like change the pods; what the gateway reloads does not."""
    anonymous = {"auth": {"mode": ["none"], "allow_anonymous": True}}
    assert checksum(anonymous) != checksum({})
    assert checksum({"log": {"level": "debug"}}) != checksum({})
    assert checksum({"server": {"keep_alive_seconds": 9}}) != checksum({})
    assert checksum({}, tls={"existingSecret": "x"}) != checksum({})
    assert checksum({}, redis={"enabled": True}) != checksum({})
    assert checksum({"retrieve": {"deadline_ms": 5}, "server": {"max_batch": 9}}) == checksum({})
    assert checksum({}, registry={"engines": ENGINES}, tenants={"existingSecret": "x"}) == checksum({})


def test_the_chart_knows_every_setting_that_is_read_at_start() -> None:
    """templates/_settings.tpl lists those of app/api/reload.py."""
    text = (DEPLOY / "helm/rcp-gateway/templates/_settings.tpl").read_text(encoding="utf-8")
    part = text.split('define "rcp-gateway.startSettings"', 1)[1].split("{{- range", 1)[0]
    sections = set(re.findall(r'"(\w+)"', part.split("pick $settings", 1)[1].split("-}}", 1)[0]))
    lists = re.findall(r'"(\w+)" \(list ([^)]*)\)', part)
    keys = {f"{section}.{key}" for section, names in lists for key in re.findall(r'"(\w+)"', names)}
    assert (keys, sections) == (set(AT_START), set(SECTIONS_AT_START))


def test_the_notes_say_what_is_next() -> None:
    """How to wait, where the key is, and how to ask; with own tenants and engines no word of a key or an example."""
    (notes,) = [text for name, text in rendered().items() if name.endswith("NOTES.txt")]
    assert "kubectl rollout status deployment/search-rcp-gateway -n rcp" in notes
    assert "kubectl get secret search-rcp-gateway-key -n rcp" in notes
    assert "example engine" in notes
    (notes,) = [text for name, text in rendered(EVERYTHING).items() if name.endswith("NOTES.txt")]
    assert "https://search-rcp-gateway.rcp:443/rcp" in notes
    assert "-key" not in notes
    assert "example engine" not in notes
    assert "share no state" not in notes


def test_the_base_of_the_runbook_can_be_set() -> None:
    """Every alert links to the page under the given base."""
    rule = {"enabled": True, "runbookBaseUrl": "https://wiki.example/rcp/"}
    chart = manifests({"monitoring": {"prometheusRule": rule}})
    links = {
        rule["annotations"]["runbook_url"].partition("#")[0]
        for group in chart["PrometheusRule"]["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert links == {"https://wiki.example/rcp/runbook.md"}


def test_the_values_in_the_documents_are_values() -> None:
    """What docs/guides/kubernetes.md shows for Helm is rendered, with its engine and what the operator reads."""
    chart = manifests(DOCUMENTED[0])
    assert json.loads(chart["ConfigMap"]["data"]["rcp.json"])["engines"][0]["id"] == "docs"
    assert set(chart) >= OPERATOR
    assert "Secret" not in chart
    assert len(DOCUMENTED) == 4


@pytest.mark.parametrize("page", ["guides/kubernetes.md", "guides/runbook.md", "guides/production.md"])
def test_the_names_in_the_documents_are_the_charts(page: str) -> None:
    """With the release name of the documented command, kubectl commands name what chart and kustomize create."""
    (release,) = set(re.findall(r"^helm upgrade --install (\S+) deploy/helm/rcp-gateway", PAGE, re.MULTILINE))
    files = rendered({"redis": {"enabled": True}}, release=release)
    made = {
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        for name, text in files.items() if name.endswith(".yaml")
        for manifest in documents(text)
    }  # fmt: skip
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:deployment|service|secret)/[\w-]+)", text))
    named |= {f"secret/{name}" for name in re.findall(r"get secret ([\w-]+)", text)}
    assert named <= made
    assert read("kubernetes/base/deployment.yaml")["metadata"]["name"] in {name.partition("/")[2] for name in made}


def test_versions_agree() -> None:
    """Chart, package and the overlay's image are of one version."""
    chart = read("helm/rcp-gateway/Chart.yaml")
    assert f'version = "{chart["appVersion"]}"' in (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    overlay = read("kubernetes/overlays/production/kustomization.yaml")
    assert overlay["images"][0]["newTag"] == chart["appVersion"]


def test_every_value_is_in_the_schema() -> None:
    """values.yaml and values.schema.json know the same keys."""
    schema = json.loads((DEPLOY / "helm/rcp-gateway/values.schema.json").read_text(encoding="utf-8"))
    assert set(read("helm/rcp-gateway/values.yaml")) == set(schema["properties"])
