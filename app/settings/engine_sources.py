"""The engines of all sources: the last good engines of each file, whatever happens to the file or to other files.

`look` finds what has changed and blocks while it reads; it is called in a thread, one call at a time.
"""

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from app.settings.field_errors import FieldError, SettingsError
from app.settings.file_syntax import read_json
from app.settings.schema import EngineEntry
from app.settings.source_files import Stamp, decoded, find_files, read_file
from app.settings.source_rails import OriginOfEngine, entries_of, too_many_engines
from app.settings.source_settings import SourceEntry

SHRINK_ENGINES = 3
"""A change that removes more engines than this, and more than half of a source, waits for a second look."""


class _Document:
    """One file, or the document at a URL."""

    __slots__ = ("candidate", "conflicts", "faults", "gone", "good", "good_written", "name", "stamp", "written")

    def __init__(self, name: str, good: tuple[EngineEntry, ...] = (), good_written: Any = None) -> None:
        self.name = name
        self.stamp: Stamp | FieldError | bytes | None = None
        """What it looked like when it was last read; None: it must be read."""
        self.good = good
        """The engines in force."""
        self.good_written = good_written
        """The JSON they come from, without secrets; None before the first good one."""
        self.candidate: tuple[EngineEntry, ...] | None = None
        """Valid engines that are not in force yet. They wait for ids that another document still holds."""
        self.written: Any = None
        """The JSON of `candidate`."""
        self.faults: tuple[FieldError, ...] = ()
        """Of the document itself."""
        self.conflicts: tuple[FieldError, ...] = ()
        """Of the document beside others: ids of other files, too many engines."""
        self.gone = False

    def wanted(self, failed: bool) -> tuple[EngineEntry, ...]:
        """The engines in force if its change succeeds, or fails."""
        if failed:
            return self.good
        return () if self.gone else self.good if self.candidate is None else self.candidate


class _Source:
    """One source and its documents by name."""

    __slots__ = ("documents", "entry", "faults", "last_success", "reported", "shrunk")

    def __init__(self, entry: SourceEntry) -> None:
        self.entry = entry
        self.documents: dict[str, _Document] = {}
        self.faults: tuple[FieldError, ...] = ()
        """Of its folder, or of the request for its URL."""
        self.shrunk: frozenset[str] | None = None
        """Engines that the last look would have removed."""
        self.last_success = 0.0
        self.reported: tuple[str, ...] = ()
        """The faults that were last reported."""

    def all_faults(self) -> tuple[str, ...]:
        """Each fault with its file."""
        own = [f"{self.entry.files or 'url'}: {fault}" for fault in self.faults]
        files = [f"{one.name}: {fault}" for one in self.documents.values() for fault in (*one.faults, *one.conflicts)]
        return (*own, *files)

    def ids(self) -> frozenset[str]:
        """The engines in force."""
        return frozenset(entry.id for one in self.documents.values() for entry in one.good)


class SourceEvent(NamedTuple):
    """What a look found out about one source, for log and metrics."""

    kind: Literal["reloaded", "failed", "shrinks"]
    source: str
    faults: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    """Of `shrinks`: the engines that wait to be removed."""


class SourceState(NamedTuple):
    """One source as operators see it."""

    name: str
    origin: str
    up: bool
    engines: tuple[str, ...]
    last_success: float
    """Unix time of the last look without faults; 0: never."""
    faults: tuple[str, ...]
    tenants: tuple[str, ...] | None
    documents: tuple[tuple[str, int, tuple[str, ...]], ...]
    """Name, number of engines in force and faults of each document."""


class SourceEngines(NamedTuple):
    """The outcome of a look: the engines of the registry file and of all sources, and the origin of the latter."""

    entries: tuple[EngineEntry, ...]
    origins: Mapping[str, OriginOfEngine]
    changed: bool
    events: tuple[SourceEvent, ...]


NO_ORIGINS: Mapping[str, OriginOfEngine] = MappingProxyType({})


class EngineSources:
    """All sources of one gateway. Without sources, a look does nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._sources: dict[str, _Source] = {}
        self._registry: tuple[EngineEntry, ...] = ()
        self._main: frozenset[str] = frozenset()
        self._bodies: dict[str, bytes | FieldError | None] = {}
        self._dirty = False
        self.latest = SourceEngines((), NO_ORIGINS, changed=False, events=())
        """The outcome of the last look."""
        self.states: tuple[SourceState, ...] = ()
        """The state of each source after the last look, by name."""

    def configure(self, sources: Sequence[SourceEntry], registry: Iterable[EngineEntry]) -> None:
        """Apply the sources of the settings, and the engines of the registry file, whose ids take precedence.

        If the rails of a source changed, its engines in force have to pass the new ones: an operator who forbids a host
        must not wait for the team to change its file.
        """
        self._registry = tuple(registry)
        self._main = frozenset(entry.id for entry in self._registry)
        self._dirty = True
        before, self._sources = self._sources, {}
        for entry in sorted(sources, key=lambda one: one.name):
            known = before.get(entry.name)
            if known is not None and known.entry == entry:
                self._sources[entry.name] = known
                continue
            made = self._sources[entry.name] = _Source(entry)
            if known is not None and (known.entry.files, known.entry.url) == (entry.files, entry.url):
                made.last_success = known.last_success
                room = entry.allow.max_engines
                for name, document in known.documents.items():
                    good, faults = entries_of(entry, document.good_written, "{}", self._environ)
                    kept = () if faults or document.good_written is None or len(good) > room else good
                    room -= len(kept)
                    made.documents[name] = _Document(name, good=kept, good_written=document.good_written)
                if entry.url is not None and "document" in known.documents:
                    # The last body has to be read again, since the next request may take a while or fail.
                    body = known.documents["document"].stamp
                    if isinstance(body, bytes):
                        self._bodies.setdefault(entry.name, body)
        self._bodies = {name: body for name, body in self._bodies.items() if name in self._sources}

    @property
    def configured(self) -> tuple[SourceEntry, ...]:
        """The sources of the settings, by name."""
        return tuple(source.entry for source in self._sources.values())

    def receive(self, source: str, body: bytes | FieldError | None) -> None:
        """Keep what a request for the document of a source brought, until the next look. None: nothing new."""
        if source in self._sources and (body is not None or not isinstance(self._bodies.get(source), bytes)):
            self._bodies[source] = body

    def look(self) -> SourceEngines:
        """Read what has changed and bring it into force as far as it has no faults. Blocks."""
        for source in self._sources.values():
            if source.entry.files is None:
                self._look_at_url(source)
            else:
                self._look_at_files(source, source.entry.files)
        if not self._dirty:
            # Nothing is derived again from files that look as they did.
            self._note_success(())
            self.latest = self.latest._replace(changed=False, events=())
            return self.latest
        self._dirty = False
        shrinking = {name: ids for name, source in self._sources.items() if (ids := _shrinks(source))}
        held = set()
        for name, source in self._sources.items():
            # The second look confirms a shrinking only if it finds the same one.
            if name in shrinking and source.shrunk != shrinking[name]:
                held.add(name)
        failed = self._settle_conflicts(held)
        events = [event for source in self._sources.values() for event in self._bring_into_force(source, failed)]
        for name, source in self._sources.items():
            if name in held:
                events.append(SourceEvent("shrinks", name, engines=tuple(sorted(shrinking[name]))))
                self._dirty = True  # the second look decides, whether or not the file changes again
            source.shrunk = shrinking[name] if name in held else None
        self._note_success(held)
        self.latest = self._result(tuple(events))
        return self.latest

    def _note_success(self, held: Container[str]) -> None:
        now = time.time()
        for name, source in self._sources.items():
            if source.entry.files is not None and not source.reported and name not in held:
                source.last_success = now
        self.states = tuple(_state(source, self._main) for source in self._sources.values())

    # ── one source ────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_at_files(self, source: _Source, pattern: str) -> None:
        found = find_files(pattern)
        self._dirty = self._dirty or source.faults != found.faults
        source.faults = found.faults
        for name, document in source.documents.items():
            gone = found.gone and name not in found.stamps and name not in found.passed_over
            self._dirty = self._dirty or gone
            document.gone = gone
        for name in found.stamps:
            source.documents.setdefault(name, _Document(name))
        source.documents = {name: source.documents[name] for name in sorted(source.documents)}
        for name, stamp in found.stamps.items():
            document = source.documents[name]
            if stamp == document.stamp:
                continue
            self._dirty = True
            document.stamp = stamp
            if isinstance(stamp, FieldError):
                document.candidate, document.faults = None, (stamp,)
                continue
            try:
                text = read_file(name)
            except SettingsError as fault:
                document.candidate, document.faults = None, fault.faults
                continue
            self._read(source, document, text)

    def _look_at_url(self, source: _Source) -> None:
        if source.entry.name not in self._bodies:
            return
        body = self._bodies.pop(source.entry.name)
        if isinstance(body, FieldError):
            self._dirty = self._dirty or source.faults != (body,)
            source.faults = (body,)  # the last good list stays, for as long as the fault lasts
            return
        self._dirty = self._dirty or bool(source.faults)
        source.faults = ()
        document = source.documents.setdefault("document", _Document("document"))
        if body is None or document.stamp == body:
            if not document.faults:
                source.last_success = time.time()
            return
        self._dirty = True
        document.stamp = body
        try:
            self._read(source, document, decoded("document", body))
        except SettingsError as fault:
            document.candidate, document.faults = None, fault.faults
        if not document.faults:
            source.last_success = time.time()

    def _read(self, source: _Source, document: _Document, text: str) -> None:
        try:
            written = read_json(document.name, text)
        except SettingsError as fault:
            document.candidate, document.faults = None, fault.faults
            return
        entries, document.faults = entries_of(source.entry, written, text, self._environ)
        document.candidate, document.written = (None, None) if document.faults else (entries, written)

    # ── all sources ───────────────────────────────────────────────────────────────────────────────────────────────

    def _settle_conflicts(self, held: set[str]) -> set[int]:
        """The documents (by `id`) whose change must not come into force. Each round fails one more, so it ends."""
        documents = [(source, one) for source in self._sources.values() for one in source.documents.values()]
        failed = {id(one) for source, one in documents if source.entry.name in held}
        former = {name: source.ids() for name, source in self._sources.items()}
        for _, one in documents:
            one.conflicts = ()
        while True:
            owners: dict[str, _Document] = {}
            # Who has had an id longest keeps it: first the ids that stay, then new ones in the order of names.
            ranked = sorted(documents, key=lambda pair: id(pair[1]) not in failed and pair[1].candidate is not None)
            for same_file in (True, False):  # a file that was renamed keeps its ids, too
                for source, one in ranked:
                    before = {entry.id for entry in one.good} if same_file else former[source.entry.name]
                    for entry in one.wanted(id(one) in failed):
                        if entry.id in before and entry.id not in self._main:
                            owners.setdefault(entry.id, one)
            loser = self._first_conflict(ranked, owners, failed)
            if loser is None:
                return failed
            failed.add(id(loser))

    def _first_conflict(
        self, documents: Sequence[tuple[_Source, _Document]], owners: dict[str, _Document], failed: set[int]
    ) -> _Document | None:
        """The first document whose change cannot come into force, with its fault noted."""
        counts: dict[str, int] = {}
        for source, one in documents:
            engines = one.wanted(id(one) in failed)
            for place, entry in enumerate(engines):
                owner = self._main if entry.id in self._main else owners.setdefault(entry.id, one)
                if owner is one:
                    continue
                where = "the registry file" if owner is self._main else "another file"
                message = f"'{entry.id}' is already the id of an engine of {where}"
                one.conflicts = (FieldError(f"engines[{place}].id", message, "choose another id"),)
                if id(one) not in failed and one.candidate is not None:
                    return one
            counts[source.entry.name] = total = counts.get(source.entry.name, 0) + len(engines)
            may_fail = id(one) not in failed and one.candidate is not None and len(engines) > len(one.good)
            if total > source.entry.allow.max_engines and may_fail:
                one.conflicts = (too_many_engines(source.entry, total),)
                return one
        return None

    def _bring_into_force(self, source: _Source, failed: set[int]) -> list[SourceEvent]:
        changed = False
        for name, one in list(source.documents.items()):
            if id(one) in failed:
                continue
            if one.gone:
                del source.documents[name]
                changed = changed or bool(one.good)
            elif one.candidate is not None:
                changed = changed or one.good != one.candidate
                one.good, one.good_written = one.candidate, one.written
                one.candidate = one.written = None
        faults = source.all_faults()
        events = []
        if changed or (source.reported and not faults):
            events.append(SourceEvent("reloaded", source.entry.name))
        if faults and faults != source.reported:
            events.append(SourceEvent("failed", source.entry.name, faults))
        source.reported = faults
        return events

    def _result(self, events: tuple[SourceEvent, ...]) -> SourceEngines:
        entries: list[EngineEntry] = []
        origins: dict[str, OriginOfEngine] = {}
        for name, source in self._sources.items():
            tenants = None if source.entry.tenants is None else frozenset(source.entry.tenants)
            for one in source.documents.values():
                # The registry file may have taken an id that a source had: then the source has lost it.
                kept = [entry for entry in one.good if entry.id not in self._main and entry.id not in origins]
                entries += kept
                origins |= {entry.id: OriginOfEngine(name, one.name, tenants) for entry in kept}
        found = (*self._registry, *entries)
        changed = found != self.latest.entries or origins != self.latest.origins
        return SourceEngines(found, MappingProxyType(origins), changed, events)

    def __repr__(self) -> str:
        engines = len(self.latest.origins)
        return f"<EngineSources {', '.join(self._sources) or 'none'}: {engines} engines>"


def _state(source: _Source, main: frozenset[str]) -> SourceState:
    faults = source.all_faults()
    return SourceState(
        name=source.entry.name,
        origin=source.entry.files or "url",  # the query of a URL may hold a secret
        up=not faults,
        engines=tuple(sorted(source.ids() - main)),
        last_success=source.last_success,
        faults=faults,
        tenants=None if source.entry.tenants is None else tuple(source.entry.tenants),
        documents=tuple(
            (one.name, len(one.good), tuple(map(str, (*one.faults, *one.conflicts))))
            for one in source.documents.values()
        ),
    )


def _shrinks(source: _Source) -> frozenset[str]:
    """The engines that the pending changes of a source remove, if they are suspiciously many; else none."""
    now = source.ids()
    after = {entry.id for one in source.documents.values() for entry in one.wanted(failed=False)}
    lost = now - after
    return lost if len(lost) > SHRINK_ENGINES and 2 * len(lost) > len(now) else frozenset()
