"""Plans of single calls against engines that only advertise, and short ways to look at them."""

from typing import Any

import pytest

from app.federation.membership import Members
from app.federation.planner import EngineCall, Plan, plan_retrieve
from app.protocol.errors import RcpError
from app.settings.schema import FusionSettings, RetrieveSettings
from tests.support.fake_engine import FakeEngine, call_of, members_of

NOW = 100.0


def planned(members: Members, *, wishes: RetrieveSettings | None = None, **call: Any) -> Plan:
    """The plan of one call that is accepted now."""
    return plan_retrieve(call_of(now=NOW, **call), members, NOW, wishes or RetrieveSettings(), FusionSettings())


def only_engine_call(*, capabilities: dict[str, Any] | None = None, **call: Any) -> EngineCall:
    """The one leg of a plan for one engine."""
    engine = FakeEngine("docs", capabilities=capabilities)
    (engine_call,) = planned(members_of(engine), **call).engine_calls
    return engine_call


def refused(members: Members, **call: Any) -> RcpError:
    """The error of a call that nobody may be asked."""
    with pytest.raises(RcpError) as error:
        planned(members, **call)
    return error.value


def reasons(plan: Plan) -> dict[str, str | None]:
    """Engine id -> why it is not asked."""
    return {outcome.engine: outcome.kind for outcome in (*plan.skipped, *plan.lost)}


def asked(plan: Plan) -> list[str]:
    """Ids of the engines that are asked."""
    return [engine_call.engine.id for engine_call in plan.engine_calls]


RETRIEVES: dict[str, Any] = {"retrieve": {"modes": ["dense"]}}
