"""Params of `retrieve` (RCP §7.7), and the `_meta` and `x-gateway` of any call.

Refuses what is malformed regardless of capabilities (-32602 with the field) and values unknown to RCP (-32005). Whether
an engine supports an option is the planner's concern.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from app.protocol.content import TEXT_ONLY, read_query
from app.protocol.errors import OptionUnsupported
from app.protocol.filters import MAX_INTEGER, FilterTree, json_type, read_filter
from app.protocol.param_fields import MAX_NAME, refuse, refuse_value, shown

DEFAULT_K: Final = 10
MAX_PATH: Final = 64
"""Longest `_meta.federation.path`; a longer one is taken for a loop."""
MAX_WEIGHT: Final = 1_000_000
"""Largest weight, in the registry too, so that sums of weights stay exact enough in a double."""
MAX_ENGINES: Final = 1000
"""Engines that `fusion.weights` or `x-gateway.engines` may name."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error")
"""Levels of `notifications/log`, the least first (RCP §17.1)."""

MODES: Final = ("dense", "sparse", "hybrid")
MODALITIES: Final = ("text", "image", "audio", "code", "multimodal")
UNITS: Final = (
    *("chunk", "passage", "document", "node", "triplet"),
    *("path", "subgraph", "community", "tree-node", "page"),
)
FUSION_METHODS: Final = ("rrf", "weighted", "convex")
RERANK_METHODS: Final = ("cross-encoder", "colbert", "llm")
TRANSFORM_METHODS: Final = ("rewrite", "hyde", "multi-query", "decompose", "step-back")

_Integer = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
_Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]
_Id = Annotated[str, Field(min_length=1)]
_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


def _off(value: Any) -> Any:
    """`false` where RCP allows it to switch an option off; the raw params still say so."""
    return None if value is False else value


def _few(value: Any) -> Any:
    """Refuse a collection that is too large before its members are validated."""
    if type(value) is dict and len(value) > MAX_ENGINES:
        raise ValueError("too many")
    return value


class _Wire(BaseModel):
    """camelCase as on the wire; strict, so that no boolean is an integer; what RCP does not define is ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=to_camel)


class FusionOptions(_Wire):
    """`fusion`: how ranked lists become one."""

    method: str | None = None
    weights: Annotated[dict[str, _Weight | None] | None, BeforeValidator(_few)] = None
    rrf_k: _Count | None = None
    alpha: _Share | None = None


class RerankOptions(_Wire):
    """`rerank`, unless it is false."""

    method: str | None = None
    model: str | None = None
    top_n: _Count | None = None


class MmrOptions(_Wire):
    """`mmr`: diversification, from 0 (most diverse) to 1 (most relevant)."""

    lambda_: _Share | None = Field(default=None, alias="lambda")


class RecencyOptions(_Wire):
    """`recency`: newer is better. It says nothing without both."""

    field: _Id
    half_life_days: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RetrieveOptions(_Wire):
    """Every option of `retrieve` as RCP §7.7 types it; None where the caller said nothing (or `false`)."""

    k: _Count | None = None
    mode: str | None = None
    modality: str | None = None
    candidate_k: _Count | None = None
    fusion: FusionOptions | None = None
    rerank: Annotated[RerankOptions | None, BeforeValidator(_off)] = None
    mmr: MmrOptions | None = None
    rewrite: Annotated[str | None, BeforeValidator(_off)] = None
    min_score: _Finite | None = None
    recency: RecencyOptions | None = None
    unit: str | None = None
    level: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None = None
    token_budget: _Count | None = None
    session_id: _Name | None = None
    include_text: bool | None = None
    include_vectors: bool | None = None
    seed: _Integer | None = None
    index_version: str | None = None
    strict: bool | None = None
    cursor: str | None = None


class SelectOptions(_Wire):
    """`x-gateway.select`: whether only the most promising engines are asked, and how many."""

    engines: _Count | None = None

    @property
    def off(self) -> bool:
        """Whether the request wants every engine to be asked."""
        return self is _SELECT_ALL


_SELECT_ALL = SelectOptions()


def _select(value: Any) -> Any:
    """The object that `true` or `false` stands for."""
    return {True: SelectOptions(), False: _SELECT_ALL}[value] if type(value) is bool else value


class GatewayOptions(_Wire):
    """`x-gateway`: what a caller may ask of this gateway itself. Keys of other methods are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    engines: Annotated[list[_Id], Field(min_length=1, max_length=MAX_ENGINES)] | None = None
    engine: _Id | None = None
    """The engine to write to."""
    identity: Literal["id", "uri", "content"] | None = None
    confidence_weight: _Share | None = None
    mmr: MmrOptions | None = None
    explain: bool | None = None
    """Whether the response includes its plan and an explanation of each rank."""
    report: Literal["full", "brief", "none"] | None = None
    """Which engines `_meta["x-gateway"].engines` lists; `retrieve.report` is the default."""
    select: Annotated[SelectOptions | None, BeforeValidator(_select)] = None
    """Whether only the most promising engines are asked, or how many of them; `select.mode` is the default."""
    cache: Literal["use", "no", "refresh"] | None = None
    """Whether the answer may come from the answer cache: `no` neither reads nor writes it, `refresh` only writes it."""


@dataclass(frozen=True, slots=True)
class RetrieveParams:
    """One well-formed `retrieve`.

    `raw` is what may be forwarded: without nulls, `_meta` and `x-gateway`, all else as it was sent, known or not.
    """

    raw: dict[str, Any]
    options: RetrieveOptions
    gateway: GatewayOptions
    k: int
    strict: bool
    filter: FilterTree | None
    query_modalities: frozenset[str]


@dataclass(frozen=True, slots=True)
class CallMeta:
    """The members of a call's `_meta` that the gateway interprets (RCP §4.4, §9, §16). Engines get the rest."""

    deadline_ms: int | None = None
    """Milliseconds until the caller's deadline."""
    depth: int | None = None
    """Levels of aggregators allowed below this gateway."""
    path: tuple[str, ...] = ()
    """Identities of the gateways the call came through."""
    progress_token: str | int | None = None
    """Sent with every progress notification; None: no progress."""
    log_level: str | None = None
    """The least level of `notifications/log` that the caller wants on its stream (RCP §17.1); None: no log."""


_COUNT = "an integer of at least 1"
_SHARE = "a number from 0 to 1"
_FLAG = "true or false"
_SELECTION = 'true, false, or {"engines": n} with n at least 1'
_STRING = "a string"
_NAME = f"a string of 1 to {MAX_NAME} characters"
_OBJECT = "an object"

_WANTED: Mapping[str, str] = MappingProxyType(
    {
        "k": _COUNT,
        "mode": _STRING,
        "modality": _STRING,
        "candidateK": _COUNT,
        "fusion": _OBJECT,
        "fusion.method": _STRING,
        "fusion.weights": f"an object of at most {MAX_ENGINES} numbers from 0 to {MAX_WEIGHT}",
        "fusion.weights.*": f"a number from 0 to {MAX_WEIGHT}",
        "fusion.rrfK": _COUNT,
        "fusion.alpha": _SHARE,
        "rerank": "an object, or false",
        "rerank.method": _STRING,
        "rerank.model": _STRING,
        "rerank.topN": _COUNT,
        "mmr": _OBJECT,
        "mmr.lambda": _SHARE,
        "rewrite": "a string, or false",
        "minScore": "a finite number",
        "recency": _OBJECT,
        "recency.field": "a non-empty string",
        "recency.halfLifeDays": "a number above 0",
        "unit": _STRING,
        "level": "an integer of at least 0",
        "tokenBudget": _COUNT,
        "sessionId": _NAME,
        "includeText": _FLAG,
        "includeVectors": _FLAG,
        "seed": "an integer",
        "indexVersion": _STRING,
        "strict": _FLAG,
        "cursor": _STRING,
        "x-gateway": _OBJECT,
        "x-gateway.engines": f"an array of 1 to {MAX_ENGINES} engine ids",
        "x-gateway.engines.*": "an engine id",
        "x-gateway.engine": "an engine id",
        "x-gateway.identity": "one of id, uri, content",
        "x-gateway.confidenceWeight": _SHARE,
        "x-gateway.explain": _FLAG,
        "x-gateway.report": "one of full, brief, none",
        "x-gateway.cache": "one of use, no, refresh",
        "x-gateway.select": _SELECTION,
        "x-gateway.select.engines": _COUNT,
        "x-gateway.mmr": _OBJECT,
        "x-gateway.mmr.lambda": _SHARE,
    }
)
"""Path of a field -> what it must be; `*` stands for a key or an index."""

_NESTED = frozenset({"fusion", "rerank", "mmr", "recency"})
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_OURS = frozenset({"_meta", "x-gateway"})
_NO_GATEWAY_OPTIONS = GatewayOptions()
NO_OPTIONS = RetrieveOptions()
"""Options of a request with only `query` and `k`."""
_PLAIN = frozenset({"query", "k", "_meta"})
_NO_META = CallMeta()


def read_retrieve(params: dict[str, Any]) -> RetrieveParams:
    """Check the params of `retrieve` (RCP §7.7); nulls count as absent, unknown fields are kept.

    Raises InvalidParams (-32602) for what is malformed, OptionUnsupported (-32005) if the caller is strict and names a
    value that RCP does not know. With `strict: false` such a value is left for the plan to drop.
    """
    if params.keys() <= _PLAIN:
        plain = _read_plain(params.get("query"), params.get("k"))
        if plain is not None:
            return plain
    try:
        options = RetrieveOptions.model_validate(params)
    except ValidationError as fault:
        _refuse_first(fault, "")
    modalities = read_query(params.get("query"))
    tree = read_filter(params.get("filter"))
    raw = _forwardable(params)
    if tree is None:
        raw.pop("filter", None)
    k = DEFAULT_K if options.k is None else options.k
    _check_funnel(options, k)
    strict = options.strict is not False
    if strict:
        _check_choices(options)
    return RetrieveParams(raw, options, read_gateway(params.get("x-gateway")), k, strict, tree, modalities)


def _read_plain(query: Any, k: Any) -> RetrieveParams | None:
    """The params of a request with only `query` and `k`, the usual case; None for any other."""
    if type(query) is not str or not query or query.isspace():
        return None
    if k is None:
        return RetrieveParams({"query": query}, NO_OPTIONS, _NO_GATEWAY_OPTIONS, DEFAULT_K, True, None, TEXT_ONLY)
    if type(k) is not int or not 1 <= k <= MAX_INTEGER:
        return None
    return RetrieveParams({"query": query, "k": k}, NO_OPTIONS, _NO_GATEWAY_OPTIONS, k, True, None, TEXT_ONLY)


def read_gateway(options: Any) -> GatewayOptions:
    """Check `params["x-gateway"]`, which any method may carry. Raises InvalidParams (-32602)."""
    if options is None:
        return _NO_GATEWAY_OPTIONS
    try:
        return GatewayOptions.model_validate(options)
    except ValidationError as fault:
        _refuse_first(fault, "x-gateway")


def read_meta(meta: Any) -> CallMeta:
    """Check the `_meta` of a call. Raises InvalidParams (-32602); keys that RCP does not define are ignored.

    `traceId` is checked and not kept: it goes to the engines with the rest of `_meta`.
    """
    if meta is None:
        return _NO_META
    if type(meta) is not dict:
        refuse("_meta", f"'_meta' must be an object, not {json_type(meta)}")
    deadline, token, trace = meta.get("deadlineMs"), meta.get("progressToken"), meta.get("traceId")
    if deadline is not None and (type(deadline) is not int or not 1 <= deadline <= MAX_INTEGER):
        refuse_value("_meta.deadlineMs", "an integer of at least 1 (milliseconds)", deadline)
    if token is not None and type(token) is not str and type(token) is not int:
        refuse_value("_meta.progressToken", "a string or an integer", token)
    if trace is not None and type(trace) is not str:
        refuse_value("_meta.traceId", _STRING, trace)
    level = meta.get("logLevel")
    if level is not None and level not in LOG_LEVELS:
        refuse_value("_meta.logLevel", f"one of {', '.join(LOG_LEVELS)}", level)
    depth, path = _read_federation(meta.get("federation"))
    return CallMeta(deadline, depth, path, token, level)


def _read_federation(federation: Any) -> tuple[int | None, tuple[str, ...]]:
    if federation is None:
        return None, ()
    if type(federation) is not dict:
        refuse_value("_meta.federation", _OBJECT, federation)
    depth, path = federation.get("depth"), federation.get("path")
    if depth is not None and (type(depth) is not int or not 0 <= depth <= MAX_INTEGER):
        refuse_value("_meta.federation.depth", "an integer of at least 0", depth)
    if path is None:
        return depth, ()
    if type(path) is not list or len(path) > MAX_PATH:
        refuse("_meta.federation.path", f"'_meta.federation.path' must be an array of at most {MAX_PATH} identities")
    for index, identity in enumerate(path):
        if type(identity) is not str or not 1 <= len(identity) <= MAX_NAME:
            refuse_value(f"_meta.federation.path[{index}]", _NAME, identity)
    return depth, tuple(path)


def _check_funnel(options: RetrieveOptions, k: int) -> None:
    """candidateK >= rerank.topN >= k (RCP §3.3, §7.7), on the numbers as they were sent."""
    candidates = options.candidate_k
    top = None if options.rerank is None else options.rerank.top_n
    if candidates is not None and candidates < k:
        refuse("candidateK", f"'candidateK' ({candidates}) must be at least 'k' ({k})")
    if top is not None and top < k:
        refuse("rerank.topN", f"'rerank.topN' ({top}) must be at least 'k' ({k})")
    if candidates is not None and top is not None and candidates < top:
        refuse("candidateK", f"'candidateK' ({candidates}) must be at least 'rerank.topN' ({top})")


def _check_choices(options: RetrieveOptions) -> None:
    """Refuse values unknown to RCP (-32005): no engine can advertise them, so no plan is needed."""
    _check_choice("mode", options.mode, MODES)
    _check_choice("modality", options.modality, MODALITIES)
    _check_choice("unit", options.unit, UNITS)
    _check_choice("rewrite", options.rewrite, TRANSFORM_METHODS)
    if options.fusion is not None:
        _check_choice("fusion.method", options.fusion.method, FUSION_METHODS)
    if options.rerank is not None:
        _check_choice("rerank.method", options.rerank.method, RERANK_METHODS)


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise OptionUnsupported(f"'{name}' must be one of {', '.join(choices)}, not {shown(value)}", option=name)


def _forwardable(params: dict[str, Any]) -> dict[str, Any]:
    """`params` without what is ours to read, and without nulls, also in RCP's options; the filter stays as it is."""
    raw = {key: value for key, value in params.items() if value is not None and key not in _OURS}
    if type(raw["query"]) is not str:
        raw["query"] = _without_nulls(raw["query"])
    for key in _NESTED & raw.keys():
        raw[key] = _without_nulls(raw[key])
    weights = raw.get("fusion", _EMPTY).get("weights")
    if weights is not None:
        raw["fusion"]["weights"] = _without_nulls(weights)
    return raw


def _without_nulls(value: Any) -> Any:
    """A copy of `value` whose objects have no null members; not deeper, for what is deeper is not RCP's."""
    if type(value) is list:
        return [_without_nulls(item) if type(item) is dict else item for item in value]
    if type(value) is dict:
        return {key: member for key, member in value.items() if member is not None}
    return value


def _refuse_first(fault: ValidationError, root: str) -> NoReturn:
    """The first error that pydantic found, as InvalidParams."""
    error = fault.errors(include_url=False, include_context=False)[0]
    name = pattern = root
    for step in error["loc"]:
        dotted = f"{pattern}.{step}" if pattern else str(step)
        pattern = dotted if dotted in _WANTED else f"{pattern}.*"
        name = f"{name}[{step}]" if type(step) is int else f"{name}.{step}" if name else str(step)
    wanted = _WANTED[pattern]
    if error["type"] == "missing":
        refuse(name, f"'{name}' is required: {wanted}")
    if type(error["input"]) is int and abs(error["input"]) > MAX_INTEGER:
        wanted = "within ±2^53"
    if error["type"] == "too_long":
        refuse(name, f"'{name}' must be {wanted}, not one of {len(error['input'])}")
    refuse_value(name, wanted, error["input"])
