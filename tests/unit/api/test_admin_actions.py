"""What operators did, as a person reads it in an incident."""

from app.api.admin_actions import AdminActions
from app.api.operator_access import Operator
from tests.support.fake_engine import FakeTransport
from tests.support.fake_gateway import state_of
from tests.unit.api.test_admin import Engines, engine

WHO = Operator(None, None, "127.0.0.1")


async def test_drills_are_told() -> None:
    """The drills that were begun can be read, and one that begins ends the one before."""
    docs = engine("docs", FakeTransport())
    actions = AdminActions(state_of(Engines(docs), {"admin": {"drills": True}}))
    assert repr(actions) == "<AdminActions, no drill>"
    await actions.act({"engine": "docs", "action": "drill", "kind": "hang"}, WHO)
    first = actions.drills["docs"]
    await actions.act({"engine": "docs", "action": "drill", "kind": "error"}, WHO)
    assert repr(actions) == "<AdminActions, <FaultInjection error of docs, on>>"
    assert not first.on
    assert await actions.act({"engine": "docs", "action": "end_drill"}, WHO) == "the drill is over"
