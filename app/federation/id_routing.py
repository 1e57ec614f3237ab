"""Which ids a caller names belong to which engine, as far as namespaces tell (RCP §16.3). Pure.

An id with the prefix of an `idNamespace` belongs to the engines that have that namespace, and reaches them without it.
Any other belongs to nobody in particular: to every engine that has no namespace. It refuses to know what ids stand for.
"""

from collections.abc import Iterable, Mapping, Sequence

from app.protocol.param_fields import Id


def split_id(hit_id: Id, namespaces: frozenset[str]) -> tuple[str | None, Id]:
    """(namespace, the id its engines know) of an id as callers see it; (None, the id) if no namespace tells."""
    if type(hit_id) is str:
        prefix, colon, own = hit_id.partition(":")
        if colon and own and prefix in namespaces:
            return prefix, own
    return None, hit_id


def seeds_for(engine: str, seeds: Sequence[Id], engines: Mapping[str, str | None]) -> list[Id]:
    """Those of `seeds` that this engine may own, as it knows them; `engines`: engine id -> its namespace."""
    namespaces = namespaces_of(engines.values())
    owners = (owners_of(seed, engines, namespaces) for seed in seeds)
    return [known[engine] for known in owners if engine in known]


def owners_of(hit_id: Id, engines: Mapping[str, str | None], namespaces: frozenset[str]) -> Mapping[str, Id]:
    """Engine id -> the id it knows; `engines`: engine id -> its namespace. Of nobody in particular are those without a
    namespace, or all if none is without."""
    prefix, own = split_id(hit_id, namespaces)
    owners = {engine: own for engine, namespace in engines.items() if namespace == prefix}
    return owners or dict.fromkeys(engines, own)


def namespaces_of(namespaces: Iterable[str | None]) -> frozenset[str]:
    """The namespaces there are."""
    return frozenset(name for name in namespaces if name is not None)
