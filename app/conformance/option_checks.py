"""Checks of the options of `retrieve`: mode, diversity, budget, seed, snapshot (RCP §7.7).

Only advertised options are used. That others are rejected is checked in `gating_checks.py`.
"""

from app.conformance.reply import brief, is_integer, told
from app.conformance.subject import Subject, ids_of
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

BACKEND_UNAVAILABLE = -32010
OPTION_UNSUPPORTED = -32005
INVALID_PARAMS = -32602
MODES = ("dense", "sparse", "hybrid")

suite = Suite()
_check = suite.check


@_check("options.modes", "L1", "7.7", "retrieve")
async def modes(subject: Subject) -> None:
    """Every mode that is advertised is answered."""
    offered = subject.offered("retrieve", "modes")
    if not offered:
        raise Skipped("retrieve.modes is not advertised")
    for mode in offered:
        await subject.retrieve(k=3, mode=mode)


@_check("options.units", "L1", "7.7", "retrieve")
async def units(subject: Subject) -> None:
    """Every unit that is advertised is answered, and by hits of no other unit."""
    offered = subject.offered("retrieve", "units")
    if not offered:
        raise Skipped("retrieve.units is not advertised")
    for unit in offered:
        for hit in (await subject.retrieve(k=5, unit=unit))["hits"]:
            if hit.get("unit") not in (None, unit):
                raise Departure(f"the unit {brief(unit)} was asked for, and a hit is a {brief(hit['unit'])}")


@_check("options.unknown-mode", "L1", "12", "retrieve")
async def unknown_mode(subject: Subject) -> None:
    """A mode that RCP does not know is refused."""
    params = {"query": subject.wishes.query, "k": 1, "mode": "telepathic"}
    await subject.refusal("retrieve", params, OPTION_UNSUPPORTED, INVALID_PARAMS)


@_check("options.candidates", "L1", "7.7", "retrieve")
async def candidates(subject: Subject) -> None:
    """A `candidateK` of `k` or more is no reason to refuse."""
    await subject.retrieve(k=3, candidateK=20)


@_check("options.fusion", "L1", "7.7", "retrieve")
async def fusion(subject: Subject) -> None:
    """Every fusion method that is advertised is answered."""
    offered = subject.offered("retrieve", "fusion")
    if not offered:
        raise Skipped("retrieve.fusion is not advertised")
    for method in offered:
        await subject.retrieve(k=3, fusion={"method": method})


@_check("options.mmr", "L1", "7.7", "retrieve")
async def mmr(subject: Subject) -> None:
    """Who advertises `mmr` makes it."""
    if subject.offer("retrieve").get("mmr") is not True:
        raise Skipped("retrieve.mmr is not advertised")
    await subject.retrieve(k=3, mmr={"lambda": 0.5})


@_check("options.token-budget", "L1", "7.7", "retrieve")
async def token_budget(subject: Subject) -> None:
    """Who advertises `tokenBudget` keeps within it, serves the top hits that fit, and tells `usage.tokens`."""
    if subject.offer("retrieve").get("tokenBudget") is not True:
        raise Skipped("retrieve.tokenBudget is not advertised")
    whole = ids_of(await subject.retrieve(k=5))
    for budget in (20, 200):
        result = await subject.retrieve(k=5, tokenBudget=budget)
        tokens = (result.get("usage") or {}).get("tokens")
        if not is_integer(tokens):
            raise Departure(f"usage.tokens is not told with a tokenBudget, but {brief(tokens)}")
        if tokens > budget:
            raise Departure(f"tokenBudget was {budget}, and usage.tokens is {tokens}")
        found = ids_of(result)
        if found != whole[: len(found)] and whole == ids_of(await subject.retrieve(k=5)):
            raise Departure("with a tokenBudget other hits come than the top ones without it")
    asked = {"query": subject.wishes.query, "k": 5, "tokenBudget": 0}
    await subject.refusal("retrieve", asked, INVALID_PARAMS)


@_check("options.seed", "L1", "7.7", "retrieve")
async def seed(subject: Subject) -> None:
    """A seed is honoured or ignored, and never an error."""
    await subject.retrieve(k=3, seed=42)


@_check("options.snapshots", "L1", "7.7", "retrieve")
async def snapshots(subject: Subject) -> None:
    """Who advertises `snapshots` tells its version, and serves that version when asked for it."""
    if subject.offer("retrieve").get("snapshots") is not True:
        raise Skipped("retrieve.snapshots is not advertised")
    version = (await subject.retrieve(k=3)).get("indexVersion")
    if not isinstance(version, str):
        raise Departure(f"snapshots are advertised, and indexVersion is {brief(version)}")
    found = (await subject.retrieve(k=3, indexVersion=version)).get("indexVersion")
    if found != version:
        raise Departure(f"the snapshot {brief(version)} was asked for, and {brief(found)} served")


@_check("options.no-such-snapshot", "L1", "7.7", "retrieve")
async def no_such_snapshot(subject: Subject) -> None:
    """A snapshot that there is not is -32010, or -32602 for what can be none; never another one silently."""
    asked = {"query": subject.wishes.query, "k": 3, "indexVersion": "no-such-snapshot-7f3a"}
    response = (await subject.ask("retrieve", asked)).response()
    if "result" in response:
        seen = "a snapshot that there is not was asked for, and the present one served"
        raise (Departure if subject.offer("retrieve").get("snapshots") else Tolerated)(seen)
    await subject.refusal("retrieve", asked, BACKEND_UNAVAILABLE, OPTION_UNSUPPORTED, INVALID_PARAMS)


@_check("options.unknown-fields", "L0", "4.4", "retrieve")
async def unknown_fields(subject: Subject) -> None:
    """Params that nobody knows are ignored, and so is what nobody knows in `_meta`."""
    await subject.retrieve(k=3, **{"x-unknown": {"a": 1}, "noSuchOption": True, "_meta": {"x-unknown": "y"}})


@_check("options.null", "L0", "4.3", "retrieve", rule="MUST, tolerated")
async def null(subject: Subject) -> None:
    """An option that is null counts as absent."""
    asked = {"query": subject.wishes.query, "k": None, "filter": None, "minScore": None, "mode": None, "rerank": None}
    response = (await subject.ask("retrieve", asked)).response()
    if "error" in response:
        raise Tolerated(f"options that are null were refused: {told(response['error'])}")


@_check("options.session", "L1", "7.7", "retrieve")
async def session(subject: Subject) -> None:
    """A `sessionId` is a hint, and no reason to refuse."""
    await subject.retrieve(k=3, sessionId="conformance-session")


@_check("options.federation", "L1", "16", "retrieve")
async def federation(subject: Subject) -> None:
    """What an aggregator sends along in `_meta` is no reason to refuse."""
    meta = {"federation": {"depth": 2, "path": ["conformance"]}, "deadlineMs": 8000}
    await subject.retrieve(k=3, _meta=meta)
