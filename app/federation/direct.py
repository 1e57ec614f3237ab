"""One engine asked by itself, for callers that chose it: its own params, result, scores and order, nothing fused.

It decides what of a federated call still holds: the deadline, the path of gateways (RCP §16), how far hits are trusted,
and what its failure is called. What is malformed of hits is left out, as everywhere; nothing else of an answer is
changed. It refuses to know what methods mean.
"""

from functools import partial
from typing import Any

from app.federation.calls import LEAST_SECONDS, MethodCall, time_left
from app.federation.candidates import check_route
from app.federation.engine_interface import Engine
from app.federation.forward import Result, ask_one, plain, reported, share_of
from app.federation.hit_validation import relayed
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.methods.memory import owner_of, read_memory_id, with_public_id
from app.federation.outcome import single_engine_failed
from app.federation.request_options import closes_cycle
from app.federation.sessions import scoped
from app.fusion.trust import capped_hit
from app.protocol.documents import read_idempotency_key
from app.protocol.errors import BackendUnavailable, DeadlineExceeded, InvalidParams, NotFound
from app.settings.schema import GatewaySettings

MEMORIES = frozenset({"memory/build", "memory/recall"})

REPEATABLE = frozenset(
    {"catalog/list", "embed", "embed/multi", "embed/sparse", "graph", "index/delete", "memory/recall"}
    | {"query/transform", "rerank", "retrieve"}
)
"""Methods that asked twice do no more than once; any other is one only under an idempotency key."""


async def ask_single_engine(
    call: MethodCall,
    engine: Engine,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
) -> Result:
    """What `engine` answers, with the gateway's report beside it in `_meta`.

    Raises RcpError: the engine's own code if it named one; else -32014 (too slow), -32011 (too much at once) or -32010.
    """
    check_route(call, members)
    advertisement = engine.advertisement
    if advertisement is not None and closes_cycle(advertisement, call, members):
        raise BackendUnavailable(f"engine '{engine.id}' is already in the federation path", retryable=False)
    if time_left(call) < LEAST_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask the engine", retryable=True)
    params = {key: value for key, value in call.params.items() if key != "_meta"}
    if call.tenant is not None:
        if call.method in MEMORIES and params.get("memoryId") is not None:
            params["memoryId"] = _own_memory(params["memoryId"], engine, call)
        if type(params.get("sessionId")) is str:
            params["sessionId"] = scoped(members.identity, params["sessionId"], call.tenant)
    repeatable = call.method in REPEATABLE or read_idempotency_key(call.passed_on) is not None
    forwarded = plain(
        call.method, params, partial(_read, call.method, engine.id, instrumentation), idempotent=repeatable
    )
    outcome = await ask_one(engine, share_of(call, engine, members, settings), forwarded, instrumentation)
    if outcome.result is None:
        raise single_engine_failed(outcome)
    result = outcome.result
    if call.tenant is not None and call.method == "memory/build":
        result = with_public_id(engine.id, owner_of(call), dict(result))
    if engine.entry.max_trust is not None and type(result.get("hits")) is list:
        result = {**result, "hits": [capped_hit(hit, engine.entry.max_trust) for hit in result["hits"]]}
    return reported(result, members, [outcome], ())


def _own_memory(name: Any, engine: Engine, call: MethodCall) -> str:
    """What the engine calls the memory. Raises NotFound (-32015) for a name that this tenant was not given.

    Engines do not tell tenants apart, so their own names are not believed here either.
    """
    if type(name) is not str:
        raise InvalidParams("'memoryId' must be a string", field="memoryId")
    memory = read_memory_id(name, owner_of(call))
    if memory.engine != engine.id:
        raise NotFound("no such memory: it belongs to another engine", field="memoryId")
    return memory.own


def _read(method: str, engine: str, instrumentation: RetrieveInstrumentation, result: Result) -> Result:
    """What the engine sent, without hits and fields of hits that would be unreadable. Raises ProtocolViolation."""
    if method != "retrieve" and type(result.get("hits")) is not list:
        return result
    kept, outcome = relayed(engine, result)
    if outcome.malformed or outcome.excess:
        instrumentation.dropped(outcome)
    return kept
