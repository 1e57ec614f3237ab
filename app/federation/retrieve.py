"""The story of one question: plan -> fan out -> fuse -> report. Read this first.

Every step is a value of its own: Call -> Plan -> Outcomes -> result; no step reaches back.
"""

import asyncio
from time import perf_counter

from app.federation.answer import build_result
from app.federation.call import RetrieveCall
from app.federation.fanout import FanOut
from app.federation.membership import Members
from app.federation.outcome import Outcome, nobody_answered, required_failed
from app.federation.plan import Plan, plan_retrieve
from app.federation.witness import Witness
from app.fusion.merge import Fusion
from app.fusion.ranked import RankedList
from app.fusion.strategies import fuse
from app.protocol.errors import DeadlineExceeded
from app.settings.schema import GatewaySettings

Result = dict[str, object]

LEAST_SECONDS = 0.002
"""With less time than this left nobody is asked any more: no whole millisecond less could be passed on."""


async def retrieve(call: RetrieveCall, members: Members, settings: GatewaySettings, witness: Witness) -> Result:
    """Answer one `retrieve` for the whole federation (RCP §7.7, §16). Raises RcpError."""
    began = perf_counter()
    loop = asyncio.get_running_loop()
    if call.deadline - loop.time() < LEAST_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    plan = plan_retrieve(call, members, loop.time(), settings.retrieve, settings.fusion)
    fan_out = FanOut(plan, witness.leg)
    lost = await fan_out.run()
    outcomes = sorted(fan_out.outcomes, key=lambda outcome: outcome.engine)
    if lost is not None:
        raise required_failed(lost)
    fusion = _fused(plan, outcomes)
    result = build_result(call.params, plan, members, outcomes, fusion, perf_counter() - began)
    witness.retrieved(plan, outcomes, fusion, perf_counter() - began)
    return result


def _fused(plan: Plan, outcomes: list[Outcome]) -> Fusion | None:
    """The lists of all that answered as one; None if nobody was to be asked. Raises RcpError if nobody answered."""
    if not plan.legs:
        return None
    legs = {leg.engine.id: leg for leg in plan.legs}
    lists = [
        RankedList(
            engine=outcome.engine,
            hits=outcome.hits,
            weight=leg.weight,
            priority=leg.engine.entry.priority,
            fetch_k=leg.asked,
            score_floor=leg.score_floor,
            confidence=leg.engine.entry.confidence,
            namespace=leg.engine.entry.id_namespace,
        )
        for outcome in outcomes
        if outcome.status == "ok" and (leg := legs[outcome.engine])
    ]
    if not lists:
        raise nobody_answered(outcomes, out_of_time=plan.cut_by_caller)
    return fuse(lists, plan.fusion)
