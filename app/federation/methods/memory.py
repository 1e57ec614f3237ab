"""`memory/build` and `memory/recall` (RCP §7.17): memories live in engines; their public ids name the engine.

A memory id is a capability: any caller that has it can read and overwrite the memory, and engines do not know tenants.
So it carries a MAC over the tenant and the engine's own id, keyed with the deployment secret: no tenant can forge the
id of another's memory. Without tenants the MAC has no key and only detects typing errors.
"""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, NamedTuple

from app.federation.broadcast import BroadcastContext, BroadcastRequest, HitFusion, gather, settings_of, with_report
from app.federation.calls import MethodCall
from app.federation.candidates import Candidates, UnfitEngine, candidates_for
from app.federation.engine_interface import Engine
from app.federation.forward import forward, plain, with_writer_note
from app.federation.hit_validation import read_result
from app.federation.id_routing import router_of
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.outcome import skipped
from app.federation.pagination import Pages
from app.federation.response_merge import any_states, join_clues, other_fields
from app.federation.sessions import scoped
from app.protocol.advertisement import Advertisement
from app.protocol.documents import read_idempotency_key
from app.protocol.errors import (
    BackendUnavailable,
    InvalidParams,
    NotFound,
    OptionUnsupported,
    ProtocolViolation,
    RcpError,
)
from app.protocol.method_params import read_build, read_recall
from app.protocol.retrieve_params import GatewayOptions, read_gateway
from app.protocol.validators import reshaped, whole
from app.settings.schema import GatewaySettings

# --- Memory ids ---

PREFIX = "mem1."
MAX_MEMORY_ID = 4096
"""Characters of a memory id; longer ones are neither made nor read."""

_CHECK = 9
"""Bytes of the MAC: 72 bits, which can be guessed only by online attempts."""


class MemoryOwner(NamedTuple):
    """The tenant that an id is issued to."""

    tenant: str = ""
    """Empty without tenants."""
    key: bytes = b""
    """At most 64 bytes; empty for ids that need not be unforgeable."""


NO_OWNER = MemoryOwner()


class MemoryRef(NamedTuple):
    """One memory: its engine, and the engine's own id."""

    engine: str
    own: str


def memory_id_of(memory: MemoryRef, owner: MemoryOwner = NO_OWNER) -> str:
    """The public id for this owner; equal for the same memory and key."""
    # Engine ids contain no NUL, so the pair can be split again.
    body = f"{memory.engine}\0{memory.own}".encode("utf-8", "surrogatepass")
    return PREFIX + urlsafe_b64encode(_check(body, owner) + body).decode().rstrip("=")


def read_memory_id(name: str, owner: MemoryOwner = NO_OWNER) -> MemoryRef:
    """The memory of this id. Raises NotFound (-32015) for an id that this owner was not given."""
    memory = _read(name[len(PREFIX) :]) if name.startswith(PREFIX) and len(name) <= MAX_MEMORY_ID else None
    # Constant-time comparison: the MAC must not be found out byte by byte.
    if memory is None or not compare_digest(
        memory_id_of(memory, owner).encode(), name.encode("utf-8", "surrogatepass")
    ):
        raise NotFound("unknown memory; send 'memoryId' exactly as received", field="memoryId")
    return memory


def _read(word: str) -> MemoryRef | None:
    try:
        body = urlsafe_b64decode(word + "=" * (-len(word) % 4))[_CHECK:]
        engine, zero, own = body.decode("utf-8", "surrogatepass").partition("\0")
    except (NotBase64, ValueError):
        return None
    return MemoryRef(engine, own) if zero else None


def _check(body: bytes, owner: MemoryOwner) -> bytes:
    return blake2b(owner.tenant.encode() + b"\0" + body, digest_size=_CHECK, key=owner.key, person=b"memory").digest()


# --- Methods ---

_JOINED = ("clues", "hits", "usage", "_meta")


async def memory_build(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> dict[str, Any]:
    """Answer one `memory/build`; the `memoryId` returned names the engine. Raises RcpError.

    Without an idempotency key the engine is asked once, since building is not idempotent.
    """
    request = read_build(call.params)
    gateway = read_gateway(call.params.get("x-gateway"))
    candidates = candidates_for(call, members, "memory", gateway, partial(_fit, request.scope))
    memory = None if request.memory_id is None else read_memory_id(request.memory_id, owner_of(call))
    chosen, default = _builder(candidates, members, gateway, memory)
    params = request.raw if memory is None else {**request.raw, "memoryId": memory.own}
    idempotent = read_idempotency_key(call.passed_on) is not None
    forwarded = plain(
        "memory/build", params, partial(with_public_id, chosen.engines[0].id, owner_of(call)), idempotent=idempotent
    )
    return with_writer_note(await forward(call, chosen, members, settings, instrumentation, forwarded), default)


async def memory_recall(context: BroadcastContext, pages: Pages) -> dict[str, Any]:
    """Answer one `memory/recall`, by the memory's engine or by all that have memories. Raises RcpError.

    In a session, `pages` remember which engines the hits came from, if any engine takes feedback.
    """
    call, members = context.call, context.members
    request = read_recall(call.params)
    gateway = read_gateway(call.params.get("x-gateway"))
    memory = None if request.memory_id is None else read_memory_id(request.memory_id, owner_of(call))
    candidates = candidates_for(call, members, "memory", gateway)
    params = dict(request.raw)
    if memory is not None:
        candidates = _only(candidates, memory.engine, members)
        params["memoryId"] = memory.own
    if request.session_id is not None:
        params["sessionId"] = scoped(members.identity, request.session_id, call.tenant)
    screen = await pages.screen(context.settings.screen)
    hit_fusion = HitFusion(gateway, settings_of(context), members.max_k, screen)
    gathered = await gather(
        context,
        candidates,
        lambda _: BroadcastRequest(params),
        partial(read_result, ("clues",)),
        hit_fusion.partial_hits,
        single_engine=memory is not None,
    )
    for _ in hit_fusion.steps(gathered.engine_calls, gathered.outcomes):
        await asyncio.sleep(0)
    responses, fusion = gathered.responses(), hit_fusion.fusion(gathered.engine_calls, gathered.outcomes)
    # Remembered only if some engine can receive feedback on these hits.
    if request.session_id is not None and "feedback" in members.capabilities and len(fusion):
        await pages.origins.remember(request.session_id, fusion.origins(hit_fusion.keys(fusion)))
    result = {**other_fields(responses, _JOINED), "clues": join_clues(responses, request.n)}
    if len(fusion) or any_states(responses, "hits"):
        result["hits"] = hit_fusion.hits(fusion)
    if screen is not None:
        context.instrumentation.screened(screen)
    return with_report(context, gathered, result, fusion.notes)


def owner_of(call: MethodCall) -> MemoryOwner:
    """The owner of the memory ids in this call."""
    return NO_OWNER if call.tenant is None else MemoryOwner(call.tenant.id, call.secret)


def _fit(scope: str | None, _: Engine, advertisement: Advertisement) -> UnfitEngine | None:
    """An engine that does not list its scopes may support any."""
    offer = advertisement.capabilities.get("memory")
    scopes = offer.get("scopes") if type(offer) is dict else None
    if scope is None or type(scopes) is not list or scope in scopes:
        return None
    return UnfitEngine(f"memory scope {scope} is not advertised", option="scope")


def _builder(
    candidates: Candidates, members: Members, gateway: GatewayOptions, memory: MemoryRef | None
) -> tuple[Candidates, str | None]:
    """(the engine that builds: the memory's, the one named in the request, or the default writer; its id in the last
    case). Raises RcpError."""
    if memory is None:
        router = router_of(candidates, members, gateway)
        return _only(candidates, router.writer().id, members), router.chosen()
    # A memory cannot be built by another engine than the one that holds it.
    if gateway.engine not in (None, memory.engine):
        raise InvalidParams("the memory does not belong to the engine in 'x-gateway.engine'", field="x-gateway.engine")
    return _only(candidates, memory.engine, members), None


def _only(candidates: Candidates, engine_id: str, members: Members) -> Candidates:
    """The candidates reduced to one engine. Raises RcpError if it is neither among them nor unreached."""
    chosen = tuple(engine for engine in candidates.engines if engine.id == engine_id)
    lost = tuple(outcome for outcome in candidates.lost if outcome.engine == engine_id)
    if not chosen and not lost:
        raise _absent(candidates, engine_id, members)
    # They appear in the report with the reason why they were not asked.
    others = [engine.id for engine in candidates.engines if engine.id != engine_id]
    idle = [skipped(name, "not_needed", "the memory belongs to another engine") for name in others]
    return candidates._replace(engines=chosen, lost=lost, skipped=(*candidates.skipped, *idle))


def _absent(candidates: Candidates, engine_id: str, members: Members) -> RcpError:
    """Why the engine of a memory cannot be asked."""
    left_out = next((outcome for outcome in candidates.skipped if outcome.engine == engine_id), None)
    if left_out is None or engine_id not in members.ids() or left_out.kind == "capability":
        return NotFound("unknown memory: its engine has left or no longer offers memories", field="memoryId")
    if left_out.kind == "option":
        return OptionUnsupported(
            f"the engine of this memory does not support the request: {left_out.detail}", option="scope"
        )
    if left_out.kind == "not_selected":
        return InvalidParams(
            "the memory belongs to an engine that 'x-gateway.engines' excludes", field="x-gateway.engines"
        )
    return BackendUnavailable(
        f"the memory's engine '{engine_id}' cannot be asked: {left_out.detail}", retryable=left_out.kind == "unreached"
    )


def with_public_id(engine: str, owner: MemoryOwner, result: dict[str, Any]) -> dict[str, Any]:
    """The result with a public `memoryId`. Raises ProtocolViolation if it has none."""
    own = result.get("memoryId")
    if type(own) is not str or not own:
        raise ProtocolViolation("the memory/build result has no 'memoryId'")
    name = memory_id_of(MemoryRef(engine, own), owner)
    if len(name) > MAX_MEMORY_ID:
        raise ProtocolViolation("the memory/build result has a 'memoryId' that is too long")
    return {**reshaped(result, {"tokens": whole(0)}), "memoryId": name}
