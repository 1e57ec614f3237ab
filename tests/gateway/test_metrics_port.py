"""The numbers on a port of their own: there and nowhere else, once for all workers, and told when it cannot be had."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app import main
from app.api.metrics import MetricsPort
from app.server.listeners import listen_for_metrics
from app.settings.field_errors import SettingsError
from app.settings.schema import GatewaySettings
from tests.support.gateway_process import gateway_process
from tests.support.ports import free_port
from tests.support.running_gateway import PATIENCE, entry, made_state
from tests.support.tenancy import tenant


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_numbers_are_at_their_port_alone(workers: str, engines: Any, tmp_path: Path) -> None:
    """`/metrics` is there and open, nothing else is, and the endpoints' port no longer has it."""
    port = free_port()
    settings = {"metrics": {"port": port}, "server": {"drain_seconds": 0}}
    more = ("--workers", workers)
    async with gateway_process(tmp_path, [entry("e", await engines())], settings, *more) as gateway:
        assert (await gateway.retrieve()).status_code == 200
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as scraper:
            told = await scraper.get("/metrics")
            assert (told.status_code, (await scraper.get("/engines")).status_code) == (200, 404)
            assert (await scraper.post("/rcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404
            async with asyncio.timeout(PATIENCE):
                # The worker that was asked may not have published its numbers yet.
                while 'rcp_gateway_requests_total{method="retrieve",outcome="ok"} 1.0' not in told.text:
                    told = await scraper.get("/metrics")
        assert (await gateway.client.get(gateway.url("/metrics"))).status_code == 404


async def test_the_port_is_open_where_callers_are_known(engines: Any, tmp_path: Path) -> None:
    """With keys at the endpoints, whoever reaches the port still needs none."""
    port = free_port()
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": {"team": tenant("e", keys=("k" * 32,))}}))
    auth = {"mode": ["keys"], "tenants_file": str(tmp_path / "tenants.json")}
    settings = {"metrics": {"port": port}, "auth": auth, "server": {"drain_seconds": 0}}
    async with gateway_process(tmp_path, [entry("e", await engines())], settings) as gateway:
        told = await gateway.client.get(f"http://127.0.0.1:{port}/metrics")
    assert (told.status_code, "rcp_gateway_build_info" in told.text) == (200, True)


def test_a_port_that_is_taken_names_the_setting() -> None:
    """The gateway does not start, and says which setting is at fault."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError) as told:
        listen_for_metrics("127.0.0.1", taken.getsockname()[1])
    assert "metrics.port: 127.0.0.1:" in str(told.value)
    assert "choose another port" in str(told.value)


def test_off_is_no_listener() -> None:
    """Neither 0 nor nothing opens a port."""
    assert listen_for_metrics("127.0.0.1", None) == listen_for_metrics("127.0.0.1", 0) == []


def test_the_port_of_the_endpoints_is_refused() -> None:
    """One port cannot be both; the settings are at fault, which `check` tells too."""
    with pytest.raises(ValueError, match=r"is the same as server"):
        GatewaySettings.model_validate({"metrics": {"port": 8080}})


def test_the_port_can_be_looked_at() -> None:
    """In an incident: which port."""
    state = made_state([], {"metrics": {"port": 9464}})
    app = main.build_app(state)
    assert [middleware.cls for middleware in app.user_middleware] == [MetricsPort]
    assert repr(MetricsPort(app, state.metrics, 9464)) == "<MetricsPort 9464>"
