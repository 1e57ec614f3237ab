"""Checks of filters: the meaning of every advertised field, operator and combination (RCP §8).

The effect of a filter is read from the fields in the `meta` of hits. Without such fields, only acceptance is checked.
"""

from collections.abc import Callable
from typing import Any

from app.conformance.gating_checks import data_of
from app.conformance.reply import Json, brief
from app.conformance.subject import Subject, ids_of
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

INVALID_PARAMS = -32602
OPTION_UNSUPPORTED = -32005

SAMPLES: Json = {
    "keyword": "a",
    "text": "a",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "date": "2024-01-01T00:00:00Z",
}
"""Type of a field -> a value that it can be compared with; `geo` has none."""

suite = Suite()
_check = suite.check


@_check("filter.fields", "L1", "8", "retrieve", "filter")
async def every_field(subject: Subject) -> None:
    """Every field that is advertised can be filtered on, by a value of its type."""
    asked = 0
    for name, kind in fields(subject).items():
        if _allowed(subject, "eq") and SAMPLES.get(kind) is not None:
            await _filtered(subject, {"field": name, "op": "eq", "value": SAMPLES[kind]})
            asked += 1
    if not asked:
        raise Skipped("no field is advertised that can be compared")


@_check("filter.operators", "L1", "8", "retrieve", "filter")
async def operators(subject: Subject) -> None:
    """Every operator that is advertised is answered, on a field that it fits."""
    for name, kind in fields(subject).items():
        value = SAMPLES.get(kind)
        if value is None:
            continue
        ordered = ("gt", "gte", "lt", "lte") if kind in ("int", "float", "date") else ()
        for operator in ("eq", "ne", *ordered):
            if _allowed(subject, operator):
                await _filtered(subject, {"field": name, "op": operator, "value": value})
        for operator in ("in", "nin"):
            if _allowed(subject, operator):
                await _filtered(subject, {"field": name, "op": operator, "value": [value]})
        if _allowed(subject, "exists"):
            await _filtered(subject, {"field": name, "op": "exists", "value": True})


@_check("filter.eq", "L1", "8", "retrieve", "filter")
async def equal(subject: Subject) -> None:
    """`eq` lets through what has the value and nothing else."""
    await _means(subject, "eq", lambda value: value, lambda found, value: found == value, keeps=True)


@_check("filter.ne", "L1", "8", "retrieve", "filter")
async def unequal(subject: Subject) -> None:
    """`ne` lets through nothing that has the value."""
    await _means(subject, "ne", lambda value: value, lambda found, value: found != value, keeps=False)


@_check("filter.in", "L1", "8", "retrieve", "filter")
async def contained(subject: Subject) -> None:
    """`in` lets through what has one of the values and nothing else."""
    await _means(subject, "in", lambda value: [value], lambda found, value: found == value, keeps=True)


@_check("filter.not", "L1", "8", "retrieve", "filter")
async def negated(subject: Subject) -> None:
    """`not` lets through nothing that its inner filter would."""
    hit, name, value = await _instrumentation(subject)
    tree = {"not": {"field": name, "op": "eq", "value": value}}
    if hit["id"] in ids_of(await _filtered(subject, tree)):
        raise Departure(f"the filter {brief(tree)} let through a hit whose '{name}' is {brief(value)}")


@_check("filter.and", "L1", "8", "retrieve", "filter")
async def both(subject: Subject) -> None:
    """`and` wants all of its filters."""
    _, name, value = await _instrumentation(subject)
    leaf = {"field": name, "op": "eq", "value": value}
    if (await _filtered(subject, {"and": [leaf, {"not": leaf}]}))["hits"]:
        raise Departure(f"a filter and its own opposite, joined by 'and', let a hit through: {brief(leaf)}")


@_check("filter.or", "L1", "8", "retrieve", "filter")
async def either(subject: Subject) -> None:
    """`or` wants one of its filters."""
    hit, name, value = await _instrumentation(subject)
    leaf = {"field": name, "op": "eq", "value": value}
    if hit["id"] not in ids_of(await _filtered(subject, {"or": [leaf, {"not": leaf}]})):
        raise Departure(f"a filter and its own opposite, joined by 'or', kept a hit back: {brief(leaf)}")


@_check("filter.unknown-field", "L1", "8", "retrieve", "filter")
async def unknown_field(subject: Subject) -> None:
    """A field that is not advertised is -32602; `data.field` should name it."""
    tree = {"field": "no-such-field", "op": "eq", "value": "a"}
    named = data_of(await _refused(subject, tree, INVALID_PARAMS)).get("field")
    if not isinstance(named, str) or "no-such-field" not in named:
        raise Tolerated(f"-32602 should name 'no-such-field' in data.field, and says {brief(named)}")


@_check("filter.nested-unknown-field", "L1", "8", "retrieve", "filter")
async def nested_unknown_field(subject: Subject) -> None:
    """Such a field is found inside `and`, `or` and `not` as well."""
    leaf = {"field": "no-such-field", "op": "eq", "value": "a"}
    for tree in ({"and": [leaf]}, {"or": [leaf]}, {"not": leaf}):
        await _refused(subject, tree, INVALID_PARAMS)


@_check("filter.unoffered-operator", "L1", "8", "retrieve", "filter")
async def unoffered_operator(subject: Subject) -> None:
    """An operator that is not advertised is -32005."""
    name, kind = next(iter(fields(subject).items()), ("", ""))
    for operator, value in (("contains", "a"), ("exists", True), ("nin", ["a"]), ("gt", 1), ("ne", "a")):
        if not _allowed(subject, operator):
            fits = operator != "gt" or kind in ("int", "float", "date")
            await _refused(
                subject,
                {"field": name, "op": operator, "value": value},
                OPTION_UNSUPPORTED,
                *(() if fits else (INVALID_PARAMS,)),
            )
            return
    raise Skipped("every operator is advertised")


@_check("filter.unknown-operator", "L1", "8", "retrieve", "filter")
async def unknown_operator(subject: Subject) -> None:
    """An operator that RCP does not know is refused."""
    name = next(iter(fields(subject)), "")
    tree = {"field": name, "op": "resembles", "value": "a"}
    await _refused(subject, tree, OPTION_UNSUPPORTED, INVALID_PARAMS)


@_check("filter.empty", "L1", "8", "retrieve", "filter")
async def empty(subject: Subject) -> None:
    """An empty `and` or `or` is -32602."""
    for word in ("and", "or"):
        await _refused(subject, {word: []}, INVALID_PARAMS)


@_check("filter.value-shape", "L1", "8", "retrieve", "filter")
async def value_shape(subject: Subject) -> None:
    """A value of the wrong shape is -32602: `in` wants a list, `exists` a boolean, `eq` one value."""
    name = next(iter(fields(subject)), "")
    for operator, value in (("in", "a"), ("exists", "yes"), ("eq", ["a"])):
        if _allowed(subject, operator):
            await _refused(subject, {"field": name, "op": operator, "value": value}, INVALID_PARAMS)


@_check("filter.not-offered", "L0", "12", "retrieve")
async def not_offered(subject: Subject) -> None:
    """A server without filters refuses one: an answer without it would be a wrong one."""
    if subject.offers("filter"):
        raise Skipped("filters are advertised")
    await _refused(subject, {"field": "a", "op": "eq", "value": "b"}, OPTION_UNSUPPORTED, INVALID_PARAMS)


def fields(subject: Subject) -> dict[str, str]:
    """Every advertised field and its type; `keyword` where only names are listed."""
    found = subject.offer("filter").get("fields")
    if isinstance(found, dict):
        return {name: kind if isinstance(kind, str) else "keyword" for name, kind in found.items()}
    return {name: "keyword" for name in found if isinstance(name, str)} if isinstance(found, list) else {}


def _allowed(subject: Subject, operator: str) -> bool:
    """Whether the server takes the operator; one that lists none takes all."""
    listed = subject.offer("filter").get("operators")
    return operator in listed if isinstance(listed, list) else True


async def _instrumentation(subject: Subject) -> tuple[Json, str, Any]:
    """A hit of the sample question, a field by which it can be told, and its value there. Raises Moot."""
    known = [name for name, kind in fields(subject).items() if kind not in ("geo", "text", "date")]
    if not _allowed(subject, "eq"):
        raise Skipped("the operator eq is not advertised")
    for hit in await subject.hits():
        meta = hit.get("meta") or {}
        for name in known:
            if isinstance(meta.get(name), str | int | float):
                return hit, name, meta[name]
    raise Skipped("no hit of the sample question carries a field in its meta that can be filtered on")


async def _means(
    subject: Subject, operator: str, given: Callable[[Any], Any], holds: Callable[[Any, Any], bool], keeps: bool
) -> None:
    """See what a filter lets through. `keeps`: whether the hit that lent its value must be among it."""
    if not _allowed(subject, operator):
        raise Skipped(f"the operator {operator} is not advertised")
    hit, name, value = await _instrumentation(subject)
    tree = {"field": name, "op": operator, "value": given(value)}
    result = await _filtered(subject, tree)
    for found in result["hits"]:
        has = (found.get("meta") or {}).get(name)
        if has is not None and not isinstance(has, list) and not holds(has, value):
            raise Departure(f"the filter {brief(tree)} let through a hit whose '{name}' is {brief(has)}")
    if keeps and hit["id"] not in ids_of(result):
        raise Departure(f"the filter {brief(tree)} kept back the hit {brief(hit['id'])}, which fulfils it")


async def _filtered(subject: Subject, tree: Json) -> Json:
    return await subject.retrieve(k=10, filter=tree)


async def _refused(subject: Subject, tree: Json, *codes: int) -> Json:
    return await subject.refusal("retrieve", {"query": subject.wishes.query, "k": 3, "filter": tree}, *codes)
