"""What the orchestrator and Prometheus ask: alive, ready, and the numbers, without asking any engine."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from app.api.gateway_state import Readiness
from app.api.metrics import metrics_route
from app.api.probes import probes
from tests.support.fake_engine import FakeEngine, FakeEngines
from tests.support.fake_gateway import http_client, state_of


class Probed:
    """The probes of a gateway over fake engines."""

    def __init__(self) -> None:
        self.first = FakeEngine("a", reached=False)
        self.second = FakeEngine("b", reached=False)
        self.state = state_of(FakeEngines(self.first, self.second))
        app = FastAPI()
        app.include_router(probes(self.state))
        app.include_router(metrics_route(self.state))
        self.client = http_client(app)

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """The answer to a GET."""
        return await self.client.get(path, headers=headers)


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    """A gateway that has reached nobody yet."""
    made = Probed()
    yield made
    await made.client.aclose()


def seen(engine: FakeEngine) -> None:
    """The engine shakes hands."""
    engine.advertisement = FakeEngine("x").advertisement
    engine.up = True


async def test_alive_from_the_start(probed: Probed) -> None:
    """Liveness needs no engine."""
    response = await probed.get("/livez")
    assert (response.status_code, response.json()) == (200, {"status": "alive"})
    assert response.headers["content-type"] == "application/json"


async def test_ready_once_an_engine_was_reached(probed: Probed) -> None:
    """Not ready before the first handshake with anybody; ready, and degraded, with one of two (decision 9)."""
    response = await probed.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "not ready", "reason": "no engine has completed a handshake yet"}
    seen(probed.second)
    response = await probed.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "degraded": True})
    seen(probed.first)
    assert (await probed.get("/readyz")).json() == {"status": "ready", "degraded": False}


async def test_ready_while_all_engines_are_down(probed: Probed) -> None:
    """Readiness never follows health: with every engine down it is ready and degraded (B120)."""
    seen(probed.first)
    assert (await probed.get("/readyz")).status_code == 200
    probed.first.up = False
    probed.first.advertisement = None
    response = await probed.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "degraded": True})


async def test_draining_is_not_ready_but_alive(probed: Probed) -> None:
    """A gateway on its way out takes no new traffic and is still alive (B118)."""
    seen(probed.first)
    probed.state.readiness.draining = True
    response = await probed.get("/readyz")
    assert (response.status_code, response.json()["reason"]) == (503, "draining")
    assert (await probed.get("/livez")).status_code == 200


def test_readiness_says_what_it_is() -> None:
    """In an incident one look tells why a gateway is not ready."""
    engine = FakeEngine("a", reached=False)
    engines: Any = FakeEngines(engine)
    readiness = Readiness(engines)
    assert repr(readiness) == "<Readiness no engine has completed a handshake yet, degraded>"
    seen(engine)
    assert repr(readiness) == "<Readiness ready>"
    engine.up = False
    assert repr(readiness) == "<Readiness ready, degraded>"
    readiness.draining = True
    assert repr(readiness) == "<Readiness draining, degraded>"


async def test_metrics_in_the_format_that_is_asked_for(probed: Probed) -> None:
    """Prometheus' text format by default, OpenMetrics for who accepts it."""
    probed.state.metrics.engine_call("a", "ok", 0.1)
    response = await probed.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert 'rcp_gateway_legs_total{engine="a",outcome="ok"} 1.0' in response.text
    response = await probed.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_probes_ask_no_engine_and_know_their_length(probed: Probed, path: str) -> None:
    """No probe reaches an engine, and each answer carries Content-Length."""
    response = await probed.get(path)
    assert int(response.headers["content-length"]) == len(response.content)
    assert probed.first.asked == probed.second.asked == []
