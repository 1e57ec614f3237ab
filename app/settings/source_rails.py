"""Guard rails of engine sources: reads one registry document of a team and checks what it claims. Pure.

Faults name the rail and never quote a value that could come from the environment.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from app.settings.environment import fill_headers, references_in_headers, stray_references
from app.settings.field_errors import FieldError, faults_of, shown
from app.settings.file_syntax import locate
from app.settings.schema import EngineEntry, Registry
from app.settings.source_settings import SourceEntry

WAITING_PER_CALL = 8
"""`maxWaiting` may be this many times `max_concurrency`, as its default is."""

TRUST = ("untrusted", "community", "trusted")


class OriginOfEngine(NamedTuple):
    """Where an engine of a source comes from, and which tenants may see it (None: all whose patterns fit)."""

    source: str
    file: str
    tenants: frozenset[str] | None


def entries_of(
    source: SourceEntry, written: Any, text: str, environ: Mapping[str, str]
) -> tuple[tuple[EngineEntry, ...], tuple[FieldError, ...]]:
    """The engines of one document under the rails of its source, or its faults."""
    engines = written.get("engines") if isinstance(written, dict) else None
    if isinstance(engines, list) and len(engines) > source.allow.max_engines:
        # Counted before anything is validated: a file must not fill the process.
        return (), (too_many_engines(source, len(engines)),)
    faults = [*_variable_faults(source, written), *stray_references(written)]
    if not faults:
        # Only now is the environment read: a file must not find out which variables exist.
        document, missing = fill_headers(_with_defaults(source, written), environ)
        faults += missing
        try:
            registry = Registry.model_validate(document, by_alias=True, by_name=False)
        except ValidationError as error:
            faults += faults_of(error, Registry)
        else:
            faults += [one for place, entry in enumerate(registry.engines) for one in _rails(source, place, entry)]
            if not faults:
                return tuple(registry.engines), ()
    return (), locate(faults, text)


def _with_defaults(source: SourceEntry, written: Any) -> Any:
    """A copy in which absent keys have the defaults of this source: its namespace, and no more than its ceilings."""
    engines = written.get("engines") if isinstance(written, dict) else None
    if not isinstance(engines, list):
        return written
    allow = source.allow
    defaults: dict[str, Any] = {"maxTrust": allow.max_trust}
    if allow.namespace == "own":
        defaults["idNamespace"] = source.name
    fields = EngineEntry.model_fields
    for key, field, ceiling in (
        ("weight", "weight", allow.max_weight),
        ("priority", "priority", allow.max_priority),
        ("maxConcurrency", "max_concurrency", allow.max_concurrency),
        ("timeoutMs", "timeout_ms", allow.max_timeout_ms),
    ):
        if fields[field].default > ceiling:
            defaults[key] = ceiling
    return {**written, "engines": [{**defaults, **entry} if isinstance(entry, dict) else entry for entry in engines]}


def _variable_faults(source: SourceEntry, written: Any) -> Iterator[FieldError]:
    for where, name in references_in_headers(written):
        if not any(fnmatchcase(name, pattern) for pattern in source.allow.env):
            message = f"the variable {shown(name)} may not be used by source '{source.name}'"
            yield FieldError(where, f"rail env: {message}", _ask(source, "env"))


def variables_in(written: Any) -> set[str]:
    """Names of the environment variables that the headers of a document use."""
    return {name for _, name in references_in_headers(written)}


def _rails(source: SourceEntry, place: int, entry: EngineEntry) -> Iterator[FieldError]:
    allow, at = source.allow, f"engines[{place}]"

    def fault(key: str, rail: str, message: str) -> FieldError:
        return FieldError(f"{at}.{key}", f"rail {rail}: {message}", _ask(source, rail))

    if not entry.id.startswith(source.id_prefix):
        yield FieldError(f"{at}.id", f"rail id_prefix: must begin with '{source.id_prefix}'", "rename the engine")
    # Hits of a foreign namespace would merge with hits of its owner.
    if allow.namespace == "own" and entry.id_namespace != source.name:
        yield fault("idNamespace", "namespace", f"must be '{source.name}'")
    if entry.kind not in allow.transports:
        yield fault("command" if entry.command else "url", "transports", f"'{entry.kind}' is not allowed")
    for key, url in (("url", entry.url), *((f"replicas[{i}]", one) for i, one in enumerate(entry.replicas))):
        if url is not None and not host_allowed(allow.hosts, url):
            yield fault(key, "hosts", "the host is not among the hosts of this source")
    for key, rail, claimed in (
        ("required", "required", entry.required and not allow.required),
        ("writer", "writer", entry.writer and not allow.writer),
        ("discover", "discover", entry.discover and not allow.discover),
        ("tls", "tls_files", entry.tls is not None and not allow.tls_files),
    ):
        if claimed:
            yield fault(key, rail, "is not allowed for this source")
    for index, host in enumerate(entry.discover_hosts):
        if not host_allowed(allow.hosts, f"http://{host}"):
            yield fault(f"discoverHosts[{index}]", "hosts", "the host is not among the hosts of this source")
    for key, rail, value, most in (
        ("weight", "max_weight", entry.weight, allow.max_weight),
        ("priority", "max_priority", entry.priority, allow.max_priority),
        ("maxConcurrency", "max_concurrency", entry.max_concurrency, allow.max_concurrency),
        ("maxWaiting", "max_concurrency", entry.max_waiting or 0, WAITING_PER_CALL * allow.max_concurrency),
        ("timeoutMs", "max_timeout_ms", entry.timeout_ms, allow.max_timeout_ms),
        ("attemptTimeoutMs", "max_timeout_ms", entry.attempt_timeout_ms or 0, allow.max_timeout_ms),
    ):
        if value > most:
            yield fault(key, rail, f"must be at most {most:g}, found {value:g}")
    if TRUST.index(entry.max_trust or "trusted") > TRUST.index(allow.max_trust):
        yield fault("maxTrust", "max_trust", f"must be at most '{allow.max_trust}'")


def too_many_engines(source: SourceEntry, found: int) -> FieldError:
    """The fault of a file with which its source has more engines than it may have."""
    most = source.allow.max_engines
    message = f"rail max_engines: source '{source.name}' would have {found} engines, allowed are {most}"
    return FieldError("engines", message, _ask(source, "max_engines"))


def _ask(source: SourceEntry, rail: str) -> str:
    return f"change the file, or ask the operator to change allow.{rail} of source '{source.name}'"


def host_allowed(patterns: Sequence[str], url: str) -> bool:
    """Whether one of the patterns covers the host and port of this URL."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower().rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    for pattern in patterns:
        if "/" in pattern:
            network = ip_network(pattern)
            if address is not None and address.version == network.version and address in network:
                return True
            continue
        wanted = urlsplit(f"//{pattern}")
        name = wanted.hostname or ""
        if wanted.port is not None and wanted.port != port:
            continue
        # `*.search.svc` is any name below it, but not `search.svc` itself.
        if host == name or (name.startswith("*.") and host.endswith(name[1:]) and len(host) > len(name) - 1):
            return True
    return False
