"""Checks of rejections and their codes: unknown methods, missing capabilities, options, bad params (RCP §6, §12).

Every request here must be rejected; none can change anything on the server.
"""

from types import MappingProxyType

from app.conformance.reply import Json, brief, told
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

UNKNOWN_METHOD = -32004
CAPABILITY_MISSING = -32003
OPTION_UNSUPPORTED = -32005
INVALID_PARAMS = -32602

GATES = MappingProxyType(
    {
        "embed": "embed",
        "embed/sparse": "sparseEmbed",
        "embed/multi": "multiVector",
        "rerank": "rerank",
        "retrieve": "retrieve",
        "query/transform": "transform",
        "graph": "graph",
        "index/add": "index",
        "index/delete": "index",
        "catalog/list": "catalog",
        "feedback": "feedback",
        "memory/build": "memory",
        "memory/recall": "memory",
    }
)
"""Method -> the capability that must be advertised for it (RCP §7)."""

suite = Suite()
_check = suite.check


@_check("gating.unknown-method", "L0", "12")
async def unknown_method(subject: Subject) -> None:
    """A method that is none of RCP's is -32004."""
    for method in ("no/such-method", "retrieve/more", "Retrieve"):
        await subject.refusal(method, {}, UNKNOWN_METHOD)


@_check("gating.missing", "L0", "12")
async def missing(subject: Subject) -> None:
    """A method whose capability is not advertised is -32003, even if its params are bad as well."""
    lacking = [method for method, capability in GATES.items() if not subject.offers(capability)]
    if not lacking:
        raise Skipped("every capability is advertised")
    for method in lacking:
        await subject.refusal(method, {"k": "three", "ids": [], "documents": []}, CAPABILITY_MISSING)


@_check("gating.vendor", "L0", "6.2", rule="SHOULD")
async def vendor(subject: Subject) -> None:
    """A vendor's method that is not advertised is -32003, or -32004 where vendors are not known at all."""
    await subject.refusal("x-no-such-vendor/act", {}, CAPABILITY_MISSING, UNKNOWN_METHOD)


@_check("gating.positive-integers", "L0", "12", "retrieve")
async def positive_integers(subject: Subject) -> None:
    """A `k` that is no integer from 1 on is -32602; `data.field` should name it."""
    for k in (0, -1, 1.5, "3", True):
        await _invalid(subject, "k", k=k)


@_check("gating.funnel", "L0", "7.7", "retrieve")
async def funnel(subject: Subject) -> None:
    """A `candidateK` below `k` is -32602; `data.field` should name it."""
    await _invalid(subject, "candidateK", k=5, candidateK=2)


@_check("gating.funnel-rerank", "L1", "7.7", "retrieve")
async def funnel_rerank(subject: Subject) -> None:
    """A `rerank.topN` below `k` is -32602, whatever else may be said of it."""
    if not subject.offer("retrieve").get("rerankBuiltin"):
        raise Skipped("retrieve.rerankBuiltin is not advertised")
    method = (subject.offered("rerank", "methods") or ["cross-encoder"])[0]
    params = {"query": subject.wishes.query, "k": 5, "rerank": {"method": method, "topN": 2}}
    await subject.refusal("retrieve", params, INVALID_PARAMS)


@_check("gating.query", "L0", "7.7", "retrieve")
async def query(subject: Subject) -> None:
    """A `retrieve` without a query, or with one that is a number, is -32602."""
    for params in ({"k": 1}, {"query": 7, "k": 1}, {"query": None, "k": 1}):
        await subject.refusal("retrieve", params, INVALID_PARAMS)


@_check("gating.strict", "L0", "12", "retrieve")
async def strict(subject: Subject) -> None:
    """An option that is not advertised is -32005; `data.option` should name it."""
    params, option = unoffered(subject)
    error = await subject.refusal("retrieve", {"query": subject.wishes.query, "k": 3, **params}, OPTION_UNSUPPORTED)
    named = data_of(error).get("option")
    if not isinstance(named, str) or option not in named:
        raise Tolerated(f"-32005 for {brief(params)} must name '{option}' in data.option, and says {brief(named)}")


@_check("gating.not-strict", "L1", "12", "retrieve", rule="SHOULD")
async def not_strict(subject: Subject) -> None:
    """With `strict: false` such an option may be left out, and `usage.notes` says so."""
    params, option = unoffered(subject)
    asked = {"query": subject.wishes.query, "k": 3, "strict": False, **params}
    response = (await subject.ask("retrieve", asked)).response()
    if "error" in response:
        if response["error"].get("code") != OPTION_UNSUPPORTED:
            raise Departure(f"{brief(asked)} was refused: {told(response['error'])}")
        raise Skipped("options that are not advertised are refused with strict: false as well, as a server may choose")
    usage = response["result"].get("usage")
    if not (isinstance(usage, dict) and usage.get("notes")):
        raise Departure(f"'{option}' was left out, and usage.notes does not say so")


async def _invalid(subject: Subject, field: str, **params: object) -> None:
    asked = {"query": subject.wishes.query, **params}
    error = await subject.refusal("retrieve", asked, INVALID_PARAMS)
    named = data_of(error).get("field")
    if named != field:
        raise Tolerated(f"-32602 for {brief(params)} must name '{field}' in data.field, and says {brief(named)}")


def data_of(error: Json) -> Json:
    """`data` of an error, empty where there is none."""
    data = error.get("data")
    return data if isinstance(data, dict) else {}


def unoffered(subject: Subject) -> tuple[Json, str]:
    """Params with one option that is valid and not advertised, and its name. Raises Moot if all are."""
    offer, modes = subject.offer("retrieve"), subject.offered("retrieve", "modes")
    for mode in ("sparse", "dense", "hybrid"):
        if modes and mode not in modes:
            return {"mode": mode}, "mode"
    if not offer.get("mmr"):
        return {"mmr": {"lambda": 0.5}}, "mmr"
    units = subject.offered("retrieve", "units")
    for unit in ("community", "triplet", "page"):
        if units and unit not in units:
            return {"unit": unit}, "unit"
    raise Skipped("every option that could be asked for is advertised")
