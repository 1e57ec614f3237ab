"""The server of one gateway: its stages, each reached once and none left out of the metrics."""

import signal
from typing import Any

import uvicorn

from app.server.lifecycle import GatewayServer
from app.server.shutdown_stage import ShutdownStage
from tests.support.fake_engine import FakeEngines
from tests.support.fake_gateway import state_of


async def test_stages_only_go_on() -> None:
    """A stage that is reached is not gone back to; the gateway is not ready from the first on."""
    state = state_of(FakeEngines(), {"server": {"drain_seconds": 3600}})
    asked: list[str] = []
    signals: Any = {signal.SIGTERM: None, signal.SIGUSR1: ShutdownStage.FINISHING, signal.SIGHUP: None}
    keeper = GatewayServer(
        uvicorn.Config(lambda: None, log_config=None), state, signals=signals, reload=lambda: asked.append("reload")
    )
    assert repr(keeper).startswith("<Doorkeeper serving, <ConnectionLimits 0/")
    keeper.handle_signal(signal.SIGHUP)
    keeper.handle_signal(signal.SIGWINCH)
    assert (asked, keeper.stage) == (["reload"], ShutdownStage.SERVING)
    keeper.handle_signal(signal.SIGTERM)
    assert (keeper.stage, state.readiness.reason(), keeper.should_exit) == (ShutdownStage.DRAINING, "draining", False)
    assert state.metrics.registry.get_sample_value("rcp_gateway_draining") == 1
    keeper.handle_signal(signal.SIGUSR1)
    assert (keeper.stage, keeper.should_exit, keeper.server_state.closing) == (ShutdownStage.FINISHING, True, True)
    keeper.advance(ShutdownStage.DRAINING)
    assert keeper.stage is ShutdownStage.FINISHING
    assert ", closing>" in repr(keeper)
