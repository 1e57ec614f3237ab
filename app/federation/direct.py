"""Calls one engine that the caller chose: its own params, result, scores and order; nothing is fused.

Still in force are the deadline, the federation path (RCP §16), `maxTrust`, and error codes. Malformed hits and
fields are removed as everywhere; nothing else of the result is changed.
"""

from functools import partial
from typing import Any

from app.federation.calls import MIN_SECONDS, MethodCall, time_left
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
"""Methods that may be sent twice without an idempotency key."""


async def ask_single_engine(
    call: MethodCall,
    engine: Engine,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
) -> Result:
    """The result of `engine`, with the gateway's report in `_meta`.

    Raises RcpError: the engine's own code if it named one; else -32014 (too slow), -32011 (overloaded) or -32010.
    """
    check_route(call, members)
    advertisement = engine.advertisement
    if advertisement is not None and closes_cycle(advertisement, call, members):
        raise BackendUnavailable(f"engine '{engine.id}' is already in the federation path", retryable=False)
    if time_left(call) < MIN_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask the engine", retryable=True)
    # `_meta` is written by the gateway; everything else is the caller's own.
    params = {key: value for key, value in call.params.items() if key != "_meta"}
    if call.tenant is not None:
        if call.method in MEMORIES and params.get("memoryId") is not None:
            params["memoryId"] = _own_memory(params["memoryId"], engine, call)
        # Two tenants with the same session id must not share a session at the engine.
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
    # The operator's limit on trust holds for direct calls too.
    if engine.entry.max_trust is not None and type(result.get("hits")) is list:
        result = {**result, "hits": [capped_hit(hit, engine.entry.max_trust) for hit in result["hits"]]}
    return reported(result, members, [outcome], ())


def _own_memory(name: Any, engine: Engine, call: MethodCall) -> str:
    """The engine's own id of a memory. Raises NotFound (-32015) for an id that this tenant was not given.

    Engines do not know tenants, so an engine's own ids are not accepted from a tenant either.
    """
    if type(name) is not str:
        raise InvalidParams("'memoryId' must be a string", field="memoryId")
    memory = read_memory_id(name, owner_of(call))
    if memory.engine != engine.id:
        raise NotFound("unknown memory: it belongs to another engine", field="memoryId")
    return memory.own


def _read(method: str, engine: str, instrumentation: RetrieveInstrumentation, result: Result) -> Result:
    """The result without malformed hits and fields. Raises ProtocolViolation."""
    # Only results with hits are checked; the gateway does not know what others contain.
    if method != "retrieve" and type(result.get("hits")) is not list:
        return result
    kept, outcome = relayed(engine, result)
    if outcome.malformed or outcome.excess:
        instrumentation.dropped(outcome)
    return kept
