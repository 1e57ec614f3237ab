"""By which wishes the hits of graphs and memories are fused."""

from typing import Any

from app.federation.broadcast import HitFusion
from app.federation.outcome import answered, failed
from app.federation.planner import EngineCall
from app.protocol.errors import BadStatus
from app.protocol.retrieve_params import read_gateway
from app.settings.schema import GatewaySettings
from tests.support.fake_engine import FakeEngine, hit, hits


def engine_call(name: str, weight: float = 1.0) -> EngineCall:
    return EngineCall(FakeEngine(name), {}, weight, 1.0, 1.0, 5)


ENGINE_CALLS = {name: engine_call(name) for name in ("a", "b")}


def blend(k: int = 10, settings: Any = None, **gateway: Any) -> HitFusion:
    return HitFusion(read_gateway(gateway or None), GatewaySettings.model_validate(settings or {}), k)


def test_at_most_k() -> None:
    """Hits and keys of the best; those that failed add nothing."""
    outcomes = [answered("a", {"hits": hits(1, 2, 3)}, 0.1, 1), failed("b", BadStatus("503"), 0.1)]
    two = blend(2)
    fusion = two.fusion(ENGINE_CALLS, outcomes)
    assert [found["id"] for found in two.hits(fusion)] == [1, 2]
    assert two.keys(fusion) == ["1", "2"]
    assert two.so_far(ENGINE_CALLS, outcomes) == two.hits(fusion)
    assert two.so_far(ENGINE_CALLS, outcomes[1:]) is None
    assert repr(two) == "<Blend of at most 2 by rrf>"


def test_weights_and_wishes_count() -> None:
    """The registry's weights, the settings' method, and the request's identity."""
    heavy = {"a": engine_call("a", 1.0), "b": engine_call("b", 5.0)}
    outcomes = [answered("a", {"hits": hits(1)}, 0.1, 1), answered("b", {"hits": hits(2)}, 0.1, 1)]
    assert blend().keys(blend().fusion(heavy, outcomes)) == ["2", "1"]
    weighted = blend(settings={"fusion": {"method": "weighted"}})
    assert weighted.fusion(heavy, outcomes).method == "weighted"
    same = [answered(name, {"hits": [hit(name, citation={"uri": "https://e.org/x"})]}, 0.1, 1) for name in "ab"]
    assert len(blend(identity="uri").fusion(ENGINE_CALLS, same)) == 1


def test_convex_has_no_floors_here() -> None:
    """It is plain RRF then, without a note on every answer."""
    fusion = blend(settings={"fusion": {"method": "convex"}}).fusion(ENGINE_CALLS, [])
    assert (fusion.method, fusion.notes) == ("rrf", ())
