"""Into which engine's index a document belongs: the one its id names, else the one that is meant. Pure.

An id `docs:7` belongs to the engine whose `idNamespace` is `docs`, which knows it as `7`. It refuses to know what is
done to documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.federation.candidates import Candidates
from app.federation.engine import Engine
from app.federation.membership import Members
from app.protocol.documents import NAMESPACE_END, DocumentId, namespace_in
from app.protocol.errors import BackendUnavailable, InvalidParams
from app.protocol.params import GatewayOptions


@dataclass(frozen=True, slots=True)
class Shelf:
    """The writable engines of one call, and which of them is meant where an id does not say."""

    engines: Sequence[Engine]
    target: Engine | None
    owners: dict[str, list[Engine]]
    """Namespace -> the writable engines whose ids begin with it; none of them for one that is not writable."""

    def of(self, document_id: DocumentId | None, path: str) -> tuple[list[Engine], DocumentId | None]:
        """(whose it is, its id there). Raises InvalidParams naming `path` if that is not to be told."""
        named = namespace_in(document_id)
        owners = None if named is None else self.owners.get(named[0])
        if named is None or owners is None:
            return [self.only()], document_id
        if self.target is not None and self.target in owners:
            return [self.target], named[1]
        if not owners or self.target is not None:
            whose = "an engine that may not be written to" if not owners else "another engine than 'x-gateway.engine'"
            raise InvalidParams(f"'{path}' belongs to {whose}", field=path)
        return owners, named[1]

    def only(self) -> Engine:
        """The engine that is meant where an id does not say. Raises InvalidParams naming the choices."""
        if self.target is not None:
            return self.target
        if len(self.engines) == 1:
            return self.engines[0]
        raise InvalidParams(
            f"say which engine is meant in 'x-gateway.engine': one of {', '.join(choices(self.engines))}",
            field="x-gateway.engine",
        )


def shelf_of(candidates: Candidates, members: Members, gateway: GatewayOptions) -> Shelf:
    """Where documents of one call may go. Raises RcpError if nowhere."""
    if not candidates.engines:
        raise candidates.nobody()
    owners: dict[str, list[Engine]] = {}
    for engine in members.engines:
        if engine.entry.id_namespace is not None:
            owned = owners.setdefault(engine.entry.id_namespace, [])
            if engine in candidates.engines:
                owned.append(engine)
    return Shelf(candidates.engines, _target(candidates, members, gateway.engine), owners)


def public(document_id: DocumentId, engine: Engine) -> DocumentId:
    """The id by which callers know a document of `engine`."""
    namespace = engine.entry.id_namespace
    return document_id if namespace is None else f"{namespace}{NAMESPACE_END}{document_id}"


def choices(engines: Sequence[Engine]) -> list[str]:
    """Their ids."""
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
    left = next(outcome for outcome in (*candidates.skipped, *candidates.lost) if outcome.engine == name)
    if left.kind == "unreached":
        raise BackendUnavailable(f"engine '{name}' has not been reached yet", retryable=True, detail=left.detail)
    raise InvalidParams(
        f"'x-gateway.engine' names '{name}', which cannot be written to ({left.detail}); one of "
        f"{', '.join(choices(candidates.engines))} can",
        field="x-gateway.engine",
    )
