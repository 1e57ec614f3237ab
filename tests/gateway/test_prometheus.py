"""A real Prometheus scrapes a running gateway; what rules and dashboards ask it has an answer."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.support.listening_gateway import listening
from tests.support.ports import free_port
from tests.support.running_gateway import START_SECONDS, Json, entry
from tests.support.tenancy import bearer, tenant

PROJECT = Path(__file__).parents[2]
RULES = [path for path in (PROJECT / "deploy" / "prometheus").glob("*.yml") if "groups:" in path.read_text("utf-8")]
DASHBOARDS = sorted((PROJECT / "deploy" / "grafana").glob("*.json"))
KEY = "key-of-the-team-0123456789abcdef"

STRUCTURE = {"rcp_gateway"}
"""What looks like the name of a metric and is part of a job's."""


class Prometheus:
    """A running Prometheus, asked over its API."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(self, query: str) -> list[Json]:
        """The vector that a query gives now."""
        answer = await self._client.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[Json] = answer.json()["data"]["result"]
        return found

    async def ready(self) -> bool:
        """Whether it listens, and has started."""
        try:
            return (await self._client.get("/-/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def until(self, query: str) -> list[Json]:
        """The same, once it is ready and there is something."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                found = await self.ask(query) if await self.ready() else []
                if found:
                    return found
                await asyncio.sleep(0.05)

    async def groups(self) -> list[Json]:
        """Its groups of rules, once each rule has been evaluated."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                found: list[Json] = (await self._client.get("/api/v1/rules")).json()["data"]["groups"]
                if all(rule["health"] != "unknown" for group in found for rule in group["rules"]):
                    return found
                await asyncio.sleep(0.05)


@asynccontextmanager
async def prometheus(folder: Path, target: int) -> AsyncIterator[Prometheus]:
    """Debian's Prometheus on a port of loopback, with the rules of deploy/, scraping this port as job `rcp-gateway`."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing: apt-get install prometheus"
    scrape: Json = {"job_name": "rcp-gateway", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    settings = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [scrape],
    }
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=START_SECONDS
        ) as client:
            yield Prometheus(client)
    finally:
        process.terminate()
        async with asyncio.timeout(START_SECONDS):
            await process.wait()


def queries(part: Any) -> Iterator[str]:
    """Every query of a dashboard, its variables filled in."""
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            query = part["expr"].replace("$__rate_interval", "1m").replace("$__range", "1m")
            yield re.sub(r"\$\{?\w+\}?", ".*", query)
        for value in part.values():
            yield from queries(value)
    elif isinstance(part, list):
        for value in part:
            yield from queries(value)


def rule_queries() -> list[str]:
    """Every query of the rules."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    return [rule["expr"] for group in groups for rule in group["rules"]]


async def test_a_real_prometheus_reads_everything(engines: Any, tmp_path: Path) -> None:
    """It takes every series of the gateway; each query of rules and dashboards is valid and has data to work with."""
    one, two, twin = await engines(), await engines(), await engines()
    shadow = await engines()
    entries = [entry("one", one), entry("two", two, replicas=[twin.url]), entry("new", shadow, shadow={"share": 1.0})]
    tenants = {"team": tenant("*", keys=(KEY,))}
    asked = [query for path in DASHBOARDS for query in queries(json.loads(path.read_text("utf-8")))]
    async with (
        listening(entries, {"metrics": {"access": "open"}}, tenants=tenants) as (state, port),
        prometheus(tmp_path, port) as peer,
    ):
        state.metrics.sources.show({"team": (True, 1, 0.0)})
        await peer.until("up == 1")
        message = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "q"}}
        async with httpx2.AsyncClient(trust_env=False, timeout=START_SECONDS) as caller:
            for _ in range(5):
                answer = await caller.post(f"http://127.0.0.1:{port}/rcp", json=message, headers=bearer(KEY))
                assert "result" in answer.json(), answer.text
        await peer.until('rcp_gateway_requests_total{method="retrieve", outcome="ok"} == 5')
        await peer.until('rate(rcp_gateway_legs_total{engine="one", outcome="ok"}[1m]) > 0')
        families = {family.name for family in state.metrics.registry.collect()}
        scraped = await peer.ask('count by (__name__) ({__name__=~"rcp_gateway_.*"})')
        names = {re.sub(r"_(total|bucket|sum|count)$", "", found["metric"]["__name__"]) for found in scraped}
        assert families <= names
        for group in await peer.groups():
            assert not [rule for rule in group["rules"] if rule["health"] != "ok"], group
        for query in [*asked, *rule_queries()]:
            for name in set(re.findall(r"\brcp_gateway[\w:]*\b", query)) - STRUCTURE:
                assert await peer.until(f"count({name})"), f"{name} of {query}"
        for query in asked:
            assert await peer.until(re.sub(r"\s*(>|<|==)\s*[\d.]+\s*$", "", query)), query
