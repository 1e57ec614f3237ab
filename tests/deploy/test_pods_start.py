"""A real gateway, started with the files and ports of chart and kustomize base, and probed as a kubelet would."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from app.cli.config_files import DEFAULT_REGISTRY
from tests.support.authority import Authority
from tests.support.deployment import DEPLOY, PROJECT, by_kind, documents, pod_of, program, rendered, said_by
from tests.support.ports import free_port
from tests.support.running_gateway import PATIENCE, START_SECONDS

Json = dict[str, Any]


def chart(values: Json) -> dict[str, Json]:
    """The manifests of the Helm chart by their kinds."""
    files = rendered(values)
    return by_kind([one for name, text in files.items() if name.endswith(".yaml") for one in documents(text)])


@asynccontextmanager
async def pod(
    place: Path, manifests: dict[str, Json], secrets: Mapping[str, str] | None = None, port: int | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """The container of a Deployment, as a process of this machine: the same files, elsewhere in the file system.

    `secrets`: files of Secrets that the manifests expect; `port`: instead of the container's. Yields a client of the
    container's first port, which verifies no certificate, like the kubelet.
    """
    _, container = pod_of(manifests["Deployment"])
    tenants = manifests["Secret"]
    written = {**manifests["ConfigMap"]["data"], **tenants.get("stringData", {}), **(secrets or {})}
    written |= {name: b64decode(text).decode() for name, text in tenants.get("data", {}).items()}
    assert DEFAULT_REGISTRY.parent.name == "config"  # which is mounted in the image's working folder, /srv
    (place / "config").mkdir()
    for name, text in written.items():
        for mount in container["volumeMounts"]:
            if mount["name"] == "tmp":  # the same folder here
                continue
            text = text.replace(f"{mount['mountPath']}/", f"{place}/config/")  # all mounts are one folder here
        (place / "config" / name).write_text(text, encoding="utf-8")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "app", "serve", "--host", "127.0.0.1"]
    if port is not None:
        command += ["--port", str(port)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log)
    listener = container["ports"][0]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    base = f"{listener['name']}://127.0.0.1:{port or listener['containerPort']}"
    try:
        async with httpx2.AsyncClient(base_url=base, verify=context, trust_env=False) as client:
            for probe in ("startupProbe", "readinessProbe"):
                asked = container[probe]["httpGet"]
                assert asked.get("scheme", "HTTP").lower() == listener["name"]
                assert await answer(client, asked["path"], process) == 200, (place / "log").read_text()
            yield client
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, PATIENCE)


async def answer(client: httpx2.AsyncClient, path: str, process: "subprocess.Popen[bytes]") -> int:
    """The status of a probe: 200 as soon as it succeeds, the last one if it never does."""
    status = 0
    try:
        async with asyncio.timeout(START_SECONDS):
            while status != 200 and process.poll() is None:
                try:
                    status = (await client.get(path)).status_code
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    return status


def question() -> Json:
    """A retrieve that the example engine answers."""
    return {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "http client", "k": 3}}


async def test_the_defaults_start_and_answer(tmp_path: Path) -> None:
    """With no values but a port that is free here: probes succeed, the generated key gets hits, nobody else does."""
    manifests = chart({"settings": {"server": {"port": free_port()}}})
    async with pod(tmp_path, manifests) as client:
        key = manifests["key"]["stringData"]["key"]
        assert (await client.post("/rcp", json=question())).status_code == 401
        answered = await client.post("/rcp", json=question(), headers={"authorization": f"Bearer {key}"})
        assert answered.json()["result"]["hits"]
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {key}"})).status_code == 200


async def test_certificate_ports_and_own_tenants(tmp_path: Path) -> None:
    """With TLS and a port of its own for the metrics, both listen where the chart says."""
    certificate = Authority(tmp_path).ca.issue_cert("localhost")
    port, metrics = free_port(), free_port()
    values = {
        "tls": {"existingSecret": "certificate"},
        "tenants": {"content": {"team": {"engines": ["*"], "keys": [{"id": "k", "sha256": "0" * 64}]}}},
        "settings": {"server": {"port": port}, "metrics": {"port": metrics}},
    }
    secrets = {
        "tls.crt": certificate.cert_chain_pems[0].bytes().decode(),
        "tls.key": certificate.private_key_pem.bytes().decode(),
    }
    manifests = chart(values)
    async with pod(tmp_path, manifests, secrets) as client:
        assert (await client.post("/rcp", json=question())).status_code == 401
        names = {one["name"]: one["containerPort"] for one in pod_of(manifests["Deployment"])[1]["ports"]}
        assert names == {"https": port, "metrics": metrics}
        assert "rcp_gateway_certificate_days_left" in (await client.get(f"https://127.0.0.1:{metrics}/metrics")).text


async def test_the_base_starts_by_itself(tmp_path: Path) -> None:
    """Without Redis, Secrets or engines elsewhere the kustomize base becomes ready, and lets nobody in."""
    base = by_kind(documents(said_by(program("kubectl"), "kustomize", DEPLOY / "kubernetes" / "base")))
    async with pod(tmp_path, base, port=free_port()) as client:
        assert (await client.post("/rcp", json=question())).status_code == 401
