"""`index/add` and `index/delete`: routes every document to its engine, and returns results in the caller's order.

Nothing is ever written to another engine than the one it belongs to.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from app.federation.calls import MIN_SECONDS, MethodCall, time_left
from app.federation.candidates import Candidates, UnfitEngine, candidates_for, check_route
from app.federation.engine_interface import Engine
from app.federation.forward import (
    TRY_NEXT,
    ForwardedRequest,
    Result,
    ask_one,
    gather_bounded,
    plain,
    reported,
    share_of,
    with_writer_note,
)
from app.federation.id_routing import IndexRouter, public, router_of
from app.federation.instrumentation import RetrieveInstrumentation
from app.federation.membership import Members
from app.federation.outcome import Outcome, no_engine_answered, refused_by, skipped
from app.protocol.advertisement import Advertisement
from app.protocol.documents import (
    Addition,
    DocumentId,
    added_ids,
    deleted_count,
    read_addition,
    read_deletion,
    read_idempotency_key,
)
from app.protocol.errors import DeadlineExceeded, ForeignError, OptionUnsupported, RcpError
from app.protocol.retrieve_params import GatewayOptions, read_gateway
from app.protocol.validators import reshaped, whole
from app.settings.schema import GatewaySettings

AT_ONCE = 32
"""Engines that are written to at the same time."""


class IndexBatch(NamedTuple):
    """What one engine is sent of a call."""

    engine: Engine
    places: list[int]
    """Positions of its documents in the call."""
    items: list[Any]


class Writing(NamedTuple):
    """One call that writes, with everything it needs."""

    call: MethodCall
    members: Members
    settings: GatewaySettings
    instrumentation: RetrieveInstrumentation
    candidates: Candidates


async def add(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Add documents, or replace those whose id is known (RCP §7.10). Raises RcpError.

    A batch is retried only if that is idempotent: every document in it has an id, or the call has an idempotency
    key.
    """
    request = read_addition(call.params)
    key = read_idempotency_key(call.passed_on)
    gateway = read_gateway(call.params.get("x-gateway"))
    writing = _writing(call, members, settings, instrumentation, gateway)
    router = router_of(writing.candidates, members, gateway)
    batches = _batches_of(request.documents, router)
    for batch in batches:
        # Checked for every engine before anything is written.
        _check_options(request, batch.engine)

    def forwarded(batch: IndexBatch) -> ForwardedRequest:
        def read(result: Result) -> Result:
            return {**result, "ids": added_ids(result, len(batch.items))}

        # Documents with ids are replaced, not duplicated, when sent again.
        idempotent = key is not None or all("id" in document for document in batch.items)
        return plain(call.method, {**request.rest, "documents": batch.items}, read, idempotent=idempotent)

    written = await _write(writing, batches, forwarded)
    # Filled by position: engines answer for their own documents only.
    ids: list[DocumentId] = [""] * len(request.documents)
    for batch, result in zip(batches, written.results, strict=True):
        for place, own_id in zip(batch.places, result["ids"], strict=True):
            ids[place] = public(own_id, batch.engine)
    chosen = router.chosen(document.get("id") for document in request.documents)
    return _joined(writing, written, "chunks", {"ids": ids}, chosen)


async def delete(
    call: MethodCall, members: Members, settings: GatewaySettings, instrumentation: RetrieveInstrumentation
) -> Result:
    """Delete documents by id (RCP §7.11) at every engine that may hold them. Raises RcpError."""
    request = read_deletion(call.params)
    gateway = read_gateway(call.params.get("x-gateway"))
    writing = _writing(call, members, settings, instrumentation, gateway)
    router = router_of(writing.candidates, members, gateway)
    batches: dict[str, IndexBatch] = {}
    for place, document_id in enumerate(request.ids):
        engines, own_id = router.engines_holding(document_id, f"ids[{place}]")
        for engine in engines:
            _put(batches, engine, place, own_id)
    if not batches:
        # An empty list still goes to the default writer, which validates the call.
        batches[""] = IndexBatch(router.writer(), [], [])

    def forwarded(batch: IndexBatch) -> ForwardedRequest:
        def read(result: Result) -> Result:
            return {**result, "deleted": deleted_count(result)}

        return plain(call.method, {**request.rest, "ids": batch.items}, read)

    written = await _write(writing, list(batches.values()), forwarded, repeatable=True)
    return _joined(writing, written, "deleted", {})


class Written(NamedTuple):
    """The outcomes of all batches; none has failed."""

    outcomes: Sequence[Outcome]
    results: Sequence[Result]


def _writing(
    call: MethodCall,
    members: Members,
    settings: GatewaySettings,
    instrumentation: RetrieveInstrumentation,
    gateway: GatewayOptions,
) -> Writing:
    """Raises RcpError if nothing may be forwarded."""
    check_route(call, members)
    return Writing(call, members, settings, instrumentation, candidates_for(call, members, "index", gateway, _writable))


def _writable(engine: Engine, advertisement: Advertisement) -> UnfitEngine | None:
    offer = advertisement.capabilities["index"]
    if type(offer) is dict and offer.get("writable") is False:
        return UnfitEngine("its index is not writable")
    return None


def _check_options(request: Addition, engine: Engine) -> None:
    """Raises OptionUnsupported (-32005) for an option that the target engine does not advertise."""
    offer = engine.advertisement.capabilities["index"] if engine.advertisement is not None else None
    offer = offer if type(offer) is dict else {}
    for option, wanted, flag in (
        ("chunk", request.chunk, "chunking"),
        ("contextual", request.contextual, "contextual"),
    ):
        if wanted and offer.get(flag) is not True:
            raise OptionUnsupported(f"engine '{engine.id}' does not advertise index.{flag}", option=option)


def _batches_of(documents: Sequence[dict[str, Any]], router: IndexRouter) -> list[IndexBatch]:
    """The documents of each engine, under its own ids. Raises InvalidParams."""
    batches: dict[str, IndexBatch] = {}
    for place, document in enumerate(documents):
        engine, own_id = router.engine_for(document.get("id"), f"documents[{place}].id")
        _put(batches, engine, place, document if own_id is None else {**document, "id": own_id})
    return list(batches.values()) or [IndexBatch(router.writer(), [], [])]


def _put(batches: dict[str, IndexBatch], engine: Engine, place: int, item: Any) -> None:
    batch = batches.setdefault(engine.id, IndexBatch(engine, [], []))
    batch.places.append(place)
    batch.items.append(item)


async def _write(
    writing: Writing,
    batches: Sequence[IndexBatch],
    forwarded: Callable[[IndexBatch], ForwardedRequest],
    *,
    repeatable: bool = False,
) -> Written:
    """Send all batches; each is sent, even if another one fails. Raises RcpError if one did.

    `repeatable`: after a partial failure the caller may send the same call again.
    """
    call = writing.call
    if time_left(call) < MIN_SECONDS:
        raise DeadlineExceeded("the deadline leaves no time to ask any engine", retryable=True)
    # All engines share the same remaining time: they are asked at once.
    shares = [share_of(call, batch.engine, writing.members, writing.settings) for batch in batches]
    outcomes = await gather_bounded(
        [
            partial(ask_one, batch.engine, share, forwarded(batch), writing.instrumentation)
            for batch, share in zip(batches, shares, strict=True)
        ],
        AT_ONCE,
    )
    results = [dict(outcome.result) for outcome in outcomes if outcome.result is not None]
    # Partial success is an error that says what was done, so that the caller can repair it.
    if len(results) < len(batches):
        raise _failure(outcomes, any(share.cut_by_caller for share in shares), repeatable)
    return Written(outcomes, results)


def _failure(outcomes: Sequence[Outcome], out_of_time: bool, repeatable: bool) -> RcpError:
    """The error of a call of which some batches failed, with the results of those that succeeded."""
    lost = [outcome for outcome in outcomes if outcome.result is None]
    refusal = next((outcome for outcome in lost if outcome.kind == "refused" and outcome.code not in TRY_NEXT), None)
    error = no_engine_answered(lost, out_of_time=out_of_time) if refusal is None else refused_by(refusal)
    done = {outcome.engine: outcome.result for outcome in outcomes if outcome.result is not None}
    if not done:
        return error
    failed = ", ".join(outcome.engine for outcome in lost)
    text = f"partly carried out: {', '.join(sorted(done))} succeeded, {failed} failed"
    retryable = repeatable and error.data.get("retryable", False)
    return ForeignError(error.code, text, **{**error.data, "done": done, "retryable": retryable})


def _joined(
    writing: Writing, written: Written, counted: str, fields: Mapping[str, Any], chosen: str | None = None
) -> Result:
    """The merged results, with `counted` summed, and the report of every engine.

    `chosen`: the default writer, if anything was sent to it because no id named an engine.
    """
    results, candidates = written.results, writing.candidates
    result = dict(reshaped(results[0], {counted: whole(0)})) if len(results) == 1 else {}
    counts = [count for result in results if type(count := result.get(counted)) is int]
    if counts:
        result[counted] = sum(counts)
    asked = {outcome.engine for outcome in written.outcomes}
    idle = [
        skipped(engine.id, "not_needed", "no document of this call belongs to it")
        for engine in candidates.engines
        if engine.id not in asked
    ]
    ended = [*candidates.lost, *written.outcomes]
    return with_writer_note(
        reported({**result, **fields}, writing.members, ended, [*candidates.skipped, *idle]), chosen
    )
