"""Who belongs to the federation at this moment, and what it advertises as one: kept until an advertisement changes.

A request works on one frozen Members value from beginning to end. It refuses to know health: the federated
advertisement is what is configured and last known (decision 2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.federation.catalog import EVERY_EXTENSION, EngineOffer, excluded_fields, merge
from app.federation.engine import Engine

ROUTABLE = frozenset(
    {"retrieve", "filter", "citations", "catalog", "streaming", "log", "pagination", "session"}
    | {"embed", "sparseEmbed", "multiVector", "rerank", "transform", EVERY_EXTENSION}
)
"""Capabilities that this gateway can route; no other is advertised."""

WRITING = frozenset({"index"})
"""Those that it routes only if told to."""


class Engines(Protocol):
    """The living set, by priority (highest first) and id; `version` grows with each changed advertisement."""

    @property
    def version(self) -> int: ...

    @property
    def asked(self) -> Sequence[Engine]: ...

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Gateway -> those of its engines that are asked directly."""
        ...

    @property
    def disabled(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Members:
    """The federation as one request sees it."""

    identity: str
    """Ours in `_meta.federation.path`."""
    engines: Sequence[Engine]
    disabled: Sequence[str]
    capabilities: Mapping[str, Any]
    """The merged advertisement."""
    offers: Sequence[EngineOffer]
    max_k: int
    """Largest `k` served: `retrieve.maxK` of the advertisement, or the setting while nobody advertises one."""
    excluded_fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Engine id -> filter fields it must not be asked for, since its type for them lost."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Gateway -> its engines that are asked directly. Its name stands for them, also where it is not asked itself."""

    def ids(self) -> frozenset[str]:
        """Every id of the registry, disabled ones included."""
        return frozenset(engine.id for engine in self.engines) | frozenset(self.disabled)


class Membership:
    """Hands out the current Members; `epoch` counts how often the advertisement was made anew."""

    __slots__ = ("_current", "_engines", "_identity", "_max_k", "_routable", "_session_seconds", "_version", "epoch")

    def __init__(
        self, engines: Engines, identity: str, max_k: int, session_seconds: int = 1800, *, writing: bool = False
    ) -> None:
        """`max_k` bounds what is advertised; sessions are remembered for `session_seconds`.

        `writing`: whether engines' indexes may be written to through us.
        """
        self._engines = engines
        self._identity = identity
        self._max_k = max_k
        self._routable = ROUTABLE | WRITING if writing else ROUTABLE
        self._session_seconds = session_seconds
        self.epoch = 0
        self._version = -1
        self._current = self._compute()

    def current(self) -> Members:
        """The members now; the same object until an advertisement changes."""
        if self._version != self._engines.version:
            self._current = self._compute()
        return self._current

    def _compute(self) -> Members:
        self._version = self._engines.version
        self.epoch += 1
        engines = tuple(self._engines.asked)
        offers = tuple(
            EngineOffer(engine.id, engine.entry.priority, engine.advertisement)
            for engine in engines
            if engine.advertisement is not None
        )
        ours = {"fusion": ["rrf", "weighted", "convex"]}
        capabilities = merge(
            offers, max_k=self._max_k, routable=self._routable, ours=ours, session_seconds=self._session_seconds
        )
        retrieve = capabilities.get("retrieve")
        return Members(
            identity=self._identity,
            engines=engines,
            disabled=tuple(self._engines.disabled),
            capabilities=capabilities,
            offers=offers,
            max_k=retrieve["maxK"] if retrieve else self._max_k,
            excluded_fields=excluded_fields(offers),
            groups=self._engines.groups,
        )

    def __repr__(self) -> str:
        return f"<Membership {self._identity} epoch {self.epoch}, {len(self._current.offers)} advertisements>"
