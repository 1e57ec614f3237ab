"""Routes ids of hits and documents to engines by namespace (RCP §16.3). Pure.

The id `docs:7` belongs to the engines whose `idNamespace` is `docs`, which know it as `7`. Any other id may belong to
any engine without a namespace; a write with such an id goes to the default writer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.federation.candidates import Candidates
from app.federation.capabilities import precedence
from app.federation.engine_interface import Engine
from app.federation.membership import Members
from app.protocol.documents import NAMESPACE_END, DocumentId, namespace_in
from app.protocol.errors import BackendUnavailable, InvalidParams
from app.protocol.param_fields import Id
from app.protocol.retrieve_params import GatewayOptions


def split_id(hit_id: Id, namespaces: frozenset[str]) -> tuple[str | None, Id]:
    """(namespace, the id that its engines know) of a public id; (None, the id) if it has no known namespace."""
    if type(hit_id) is str:
        prefix, colon, own = hit_id.partition(":")
        # A colon alone proves nothing: URLs and times contain colons as well.
        if colon and own and prefix in namespaces:
            return prefix, own
    return None, hit_id


def seeds_for(engine: str, seeds: Sequence[Id], engines: Mapping[str, str | None]) -> list[Id]:
    """Those of `seeds` that this engine may own, under its own ids; `engines`: engine id -> its namespace."""
    namespaces = namespaces_of(engines.values())
    owners = (owners_of(seed, engines, namespaces) for seed in seeds)
    return [known[engine] for known in owners if engine in known]


def owners_of(hit_id: Id, engines: Mapping[str, str | None], namespaces: frozenset[str]) -> Mapping[str, Id]:
    """Engine id -> the id it knows; `engines`: engine id -> its namespace.

    An id without a known namespace may belong to every engine without one, or to all if each has a namespace.
    """
    prefix, own = split_id(hit_id, namespaces)
    owners = {engine: own for engine, namespace in engines.items() if namespace == prefix}
    # No engine without a namespace: the id may be one that an engine returned before it got its namespace.
    return owners or dict.fromkeys(engines, own)


def namespaces_of(namespaces: Iterable[str | None]) -> frozenset[str]:
    """The distinct namespaces."""
    return frozenset(name for name in namespaces if name is not None)


# --- Writes ---


@dataclass(frozen=True, slots=True)
class IndexRouter:
    """The writable engines of one call, and the engine that is written to if an id does not name one."""

    engines: Sequence[Engine]
    target: Engine | None
    owners: dict[str, list[Engine]]
    """Namespace -> its writable engines; empty if none of its engines is writable."""
    unreached_writer: Engine | None = None
    """The default writer if it has never been reached: nothing is written to another engine instead."""

    def engine_for(self, document_id: DocumentId | None, path: str) -> tuple[Engine, DocumentId | None]:
        """(the engine that a document is added to, its id there). Raises InvalidParams naming `path`."""
        owners, own_id = self._owners(document_id, path)
        return self.writer() if owners is None else default_of(owners), own_id

    def engines_holding(self, document_id: DocumentId, path: str) -> tuple[list[Engine], DocumentId | None]:
        """(the engines that may hold a document, its id there). Raises InvalidParams naming `path`.

        A document without a namespace may be wherever `index/add` may have put it: in every engine without a namespace,
        and in the default writer.
        """
        owners, own_id = self._owners(document_id, path)
        if owners is not None:
            return owners, own_id
        if self.target is not None:
            return [self.target], own_id
        writer = self.writer()
        # `index/add` may have put it there when it was the default writer.
        return [engine for engine in self.engines if engine is writer or engine.entry.id_namespace is None], own_id

    def writer(self) -> Engine:
        """The engine that is written to if an id does not name one. Raises BackendUnavailable (-32010)."""
        if self.target is not None:
            return self.target
        if self.unreached_writer is not None:
            raise BackendUnavailable(
                f"engine '{self.unreached_writer.id}', the default writer, has not been reached yet",
                retryable=True,
                detail=self.unreached_writer.down_reason,
            )
        return default_of(self.engines)

    def chosen(self, ids: Iterable[DocumentId | None] = (None,)) -> str | None:
        """The id of the default writer, if several engines were possible and any of these documents goes to it."""
        if self.target is not None or len(self.engines) == 1:
            return None
        unnamed = any((named := namespace_in(each)) is None or named[0] not in self.owners for each in ids)
        return default_of(self.engines).id if unnamed else None

    def _owners(self, document_id: DocumentId | None, path: str) -> tuple[list[Engine] | None, DocumentId | None]:
        """(the engines of the id's namespace, or None; the id without it)."""
        named = namespace_in(document_id)
        owners = None if named is None else self.owners.get(named[0])
        if named is None or owners is None:
            return None, document_id
        # Several engines may share a namespace; the request chooses one of them.
        if self.target is not None and self.target in owners:
            return [self.target], named[1]
        if not owners or self.target is not None:
            whose = "a read-only engine" if not owners else "an engine other than 'x-gateway.engine'"
            raise InvalidParams(f"'{path}' belongs to {whose}", field=path)
        return owners, named[1]


def default_of(engines: Sequence[Engine]) -> Engine:
    """The default writer: an engine flagged `writer`, else the one of the highest priority, then of the smallest id."""
    return min(engines, key=lambda engine: precedence(engine.entry.writer, engine.entry.priority, engine.id))


def router_of(candidates: Candidates, members: Members, gateway: GatewayOptions) -> IndexRouter:
    """Where the documents of one call may go. Raises RcpError if nowhere."""
    if not candidates.engines:
        raise candidates.no_candidate_error()
    owners: dict[str, list[Engine]] = {}
    for engine in members.engines:
        if engine.entry.id_namespace is not None:
            owned = owners.setdefault(engine.entry.id_namespace, [])
            if engine in candidates.engines:
                owned.append(engine)
    target = _target(candidates, members, gateway.engine)
    return IndexRouter(candidates.engines, target, owners, _unreached_writer(candidates, members))


def _unreached_writer(candidates: Candidates, members: Members) -> Engine | None:
    """The engine flagged `writer` that comes first, if it has never been reached."""
    unknown = {outcome.engine for outcome in (*candidates.skipped, *candidates.lost) if outcome.kind == "unreached"}
    # Engines that cannot be written to are out; unreached ones may turn out to be writable.
    flagged = [
        engine
        for engine in members.engines
        if engine.entry.writer and (engine.id in unknown or engine in candidates.engines)
    ]
    first = default_of(flagged) if flagged else None
    return first if first is not None and first.id in unknown else None


def public(document_id: DocumentId, engine: Engine) -> DocumentId:
    """The public id of a document of `engine`."""
    namespace = engine.entry.id_namespace
    return document_id if namespace is None else f"{namespace}{NAMESPACE_END}{document_id}"


def choices(engines: Sequence[Engine]) -> list[str]:
    """Ids of these engines."""
    return [engine.id for engine in engines]


def _target(candidates: Candidates, members: Members, name: str | None) -> Engine | None:
    """The engine that the call names. Raises RcpError if it cannot be written to."""
    if name is None:
        return None
    for engine in candidates.engines:
        if engine.id == name:
            return engine
    if name not in members.ids():
        raise InvalidParams(f"'x-gateway.engine' names '{name}', which is not configured", field="x-gateway.engine")
    # Every engine that is no candidate has an outcome that says why.
    left = next(outcome for outcome in (*candidates.skipped, *candidates.lost) if outcome.engine == name)
    if left.kind == "unreached":
        raise BackendUnavailable(f"engine '{name}' has not been reached yet", retryable=True, detail=left.detail)
    raise InvalidParams(
        f"'x-gateway.engine' names '{name}', which cannot be written to ({left.detail}); one of "
        f"{', '.join(choices(candidates.engines))} can",
        field="x-gateway.engine",
    )
