"""`rcp-gateway check`: would the gateway start with these files, and with `--connect`: can it reach what it needs?

The conditions for starting are in `server/preflight.py`, which `serve` uses as well.
"""

import asyncio
import errno
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default, faults_located_in
from app.cli.failures import explain
from app.cli.gateway_client import trust, unreachable
from app.cli.terminal import answers, harmless, one_line
from app.evaluation.runs import counted

if TYPE_CHECKING:
    from app.settings.schema import EngineEntry, EnginesSettings, GatewaySettings
    from app.settings.sources import LoadedRegistry


@dataclass(frozen=True, slots=True)
class ConnectionProbe:
    """What one engine answered to a handshake, or why it failed."""

    id: str
    version: str = "-"
    capabilities: str = "-"
    error: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    registry: RegistryOption = DEFAULT_REGISTRY,
    config: ConfigOption = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also connect to every engine, Redis and the token issuer.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="Check only `--file`, under the guard rails of this engine source.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Registry file of an engine source, offline.")] = None,
) -> None:
    """Check the registry, the settings, the tenants file and engine sources without starting the gateway."""
    config = config_or_default(config)
    if (source is None) != (file is None):
        raise typer.BadParameter("--source and --file belong together: name the engine source and its file")
    if source is not None and file is not None:
        if not _source_file_is_good(config, source, file):
            raise typer.Exit(1)
        return
    loaded, settings = _read(registry, config)
    if not _sources_are_good(loaded, settings):
        raise typer.Exit(1)
    if not _may_start(registry, config, loaded, settings):
        raise typer.Exit(1)
    if connect and not _all_there([entry for entry in loaded.registry.engines if entry.enabled], settings):
        raise typer.Exit(1)


def _source_file_is_good(config: Path | None, name: str, file: Path) -> bool:
    """Whether one file of a team keeps the rails of its source. Needs no variables, engines or network."""
    from app.settings.field_errors import SettingsError
    from app.settings.file_syntax import read_json
    from app.settings.source_files import read_file
    from app.settings.source_rails import entries_of, variables_in
    from app.settings.sources import load_settings

    try:
        settings = load_settings(config, os.environ)
        sources = {source.name: source for source in settings.registry.sources}
        if name not in sources:
            known = ", ".join(sorted(sources)) or "none"
            _print_error(f"registry.sources has no source '{one_line(name)}'; its sources are: {known}")
            return False
        text = read_file(str(file))
        written = read_json(str(file), text)
        # The CI of a team has no secrets: any value stands in for an allowed variable.
        entries, faults = entries_of(sources[name], written, text, dict.fromkeys(variables_in(written), "x"))
        if faults:
            raise SettingsError(str(file), faults)
    except SettingsError as fault:
        _print_error(explain(fault))
        return False
    typer.echo(f"ok: {file}: {_counted(entries)} of source '{name}'")
    return True


def _sources_are_good(loaded: "LoadedRegistry", settings: "GatewaySettings") -> bool:
    """Whether every file of every source is good. Reports each source and fault; a `url` is not requested."""
    from app.main import sources_of

    all_good = True
    for state in sources_of(loaded, settings).states:
        for fault in state.faults:
            all_good = False
            _print_error(f"source '{state.name}': {fault}")
        if not state.faults:
            detail = "not requested" if state.origin == "url" else counted(len(state.engines), "engine")
            typer.echo(f"ok: source '{state.name}': {state.origin}: {detail}")
    return all_good


def _read(registry: Path, config: Path | None) -> "tuple[LoadedRegistry, GatewaySettings]":
    """Load and report both files. Exits with code 1 if one of them has faults."""
    from app.settings.config_warnings import duplicate_addresses
    from app.settings.field_errors import SettingsError
    from app.settings.sources import load_registry, load_settings

    loaded = settings = None
    try:
        loaded = load_registry(registry, os.environ)
        typer.echo(f"ok: {registry}: {_counted(loaded.registry.engines)}, fingerprint {loaded.fingerprint}")
        for first, second in duplicate_addresses(loaded.registry.engines):
            _print_warning(
                f"engines '{first}' and '{second}' have the same address, so fusion counts it twice; remove one"
            )
    except SettingsError as fault:
        _print_error(explain(fault))
    try:
        settings = load_settings(config, os.environ)
        typer.echo(f"ok: {_origin(config)}")
    except SettingsError as fault:
        _print_error(explain(fault))
    if loaded is None or settings is None:
        raise typer.Exit(1)
    return loaded, settings


def _may_start(registry: Path, config: Path | None, loaded: "LoadedRegistry", settings: "GatewaySettings") -> bool:
    """Whether `serve` would start with these files. Reports every reason against it, and warnings."""
    from app import main
    from app.server.preflight import start_faults
    from app.settings.config_warnings import config_warnings
    from app.settings.field_errors import SettingsError
    from app.settings.sources import load_tenants

    faults = start_faults(loaded, settings, registry=registry, config=config)
    tenants = None
    try:
        tenants = load_tenants(settings)
    except SettingsError as fault:
        faults.append(fault)
    if not faults:
        try:
            with faults_located_in(config):
                asyncio.run(main.rehearse(loaded, settings, tenants))
        except SettingsError as fault:
            faults.append(fault)
    for refusal in faults:
        _print_error(explain(refusal))
    if tenants is not None:
        keys = sum(len(entry.keys) for entry in tenants.by_id.values())
        typer.echo(f"ok: {settings.auth.tenants_file}: {counted(len(tenants.by_id), 'tenant')}, {counted(keys, 'key')}")
    engines = main.sources_of(loaded, settings).latest.entries
    for warning in config_warnings(loaded, settings, tenants, time.time(), engines=engines):
        _print_warning(str(warning))
    for index, entry in enumerate(loaded.registry.engines):
        if entry.enabled and entry.command and shutil.which(entry.command[0]) is None:
            _print_warning(f"engines[{index}].command: the program '{entry.command[0]}' is not found")
    return _ports_are_free(settings) and not faults


def _ports_are_free(settings: "GatewaySettings") -> bool:
    """Whether the gateway could listen. A port in use is only a warning: it may be held by the running gateway."""
    from app.server.listeners import listen

    host, free = settings.server.host, True
    for name, port in (("server.port", settings.server.port), ("metrics.port", settings.metrics.port)):
        try:
            if port:
                listen(host, port).close()
        except OSError as fault:
            line = f"{name}: {host}:{port} cannot be opened: {fault.strerror or fault}"
            if fault.errno == errno.EADDRINUSE:
                _print_warning(f"{line}; a gateway started now would fail")
            else:
                free = False
                _print_error(line)
    return free


def _print_error(line: str) -> None:
    typer.echo(f"error: {harmless(line)}", err=True)


def _print_warning(line: str) -> None:
    typer.echo(f"warning: {harmless(line)}", err=True)


def _counted(entries: "Sequence[EngineEntry]") -> str:
    total, off = len(entries), sum(not entry.enabled for entry in entries)
    count = counted(total, "engine")
    return f"{count} ({off} disabled)" if off else count


def _origin(config: Path | None) -> str:
    from app.settings.environment import PREFIX

    source = "built-in settings" if config is None else str(config)
    overridden = sum(name.startswith(PREFIX) for name in os.environ)
    return f"{source}, {overridden} overridden by the environment" if overridden else source


def _all_there(entries: "Sequence[EngineEntry]", settings: "GatewaySettings") -> bool:
    """Whether every engine, the shared state and the token issuer answer. Reports each of them."""
    probes = asyncio.run(_probe_all(entries, settings.engines))
    if probes:
        _print_table(probes)
    all_well = not any(probe.error for probe in probes)
    for name, wanted, ask, success in (
        ("state.url", settings.state.shared, _state_fault, "Redis is reachable and writable"),
        ("jwt.jwks_url", "jwt" in settings.auth.mode, _jwks_fault, "it answers"),
    ):
        if wanted:
            fault = asyncio.run(ask(settings))
            if fault is None:
                typer.echo(f"ok: {name}: {success}")
            else:
                all_well = False
                _print_error(f"{name}: {fault}")
    return all_well


async def _state_fault(settings: "GatewaySettings") -> str | None:
    """Why the shared state cannot be used now; None if it can."""
    from app.state.redis_store import RedisState
    from app.telemetry.metric_groups import StateMetrics

    state = RedisState(settings.state, settings.server.name, lambda: "check", StateMetrics())
    try:
        return await state.fault()
    finally:
        await state.close()


async def _jwks_fault(settings: "GatewaySettings") -> str | None:
    """Why tokens could not be verified now; None if they could."""
    import httpx2

    from app.api.auth.jwks import keys_in
    from app.protocol.errors import ParseError

    url, seconds = settings.jwt.jwks_url or "", settings.jwt.timeout_seconds
    try:
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(trust_env=False, timeout=None, verify=trust(url, None)) as client,
        ):
            response = await client.get(url, headers={"accept": "application/json"})
    except (TimeoutError, httpx2.HTTPError) as fault:
        return unreachable(
            fault, url, seconds, "nothing listens at {url}; check that the issuer is running", "jwt.timeout_seconds"
        )
    if response.status_code != 200:
        return f"it answers with HTTP {response.status_code} instead of 200; check the path"
    try:
        keys_in(response.content)
    except (ValueError, ParseError):
        return "the response contains no usable key; it must be a JWKS with public keys (RFC 7517)"
    return None


async def _probe_all(entries: "Sequence[EngineEntry]", settings: "EnginesSettings") -> list[ConnectionProbe]:
    return await asyncio.gather(*(_probe(entry, settings) for entry in entries))


async def _probe(entry: "EngineEntry", settings: "EnginesSettings") -> ConnectionProbe:
    from app.engines import transport_factory
    from app.protocol.errors import LegError

    try:
        advertisement = await transport_factory.probe(entry, settings)
    except LegError as fault:
        # The registry announces a restart of a stdio engine; a check probes once and restarts nothing.
        message = re.sub(r"^started again in [\d.]+ s: ", "", fault.message)
        return ConnectionProbe(entry.id, error=one_line(f"{fault.kind}: {message}"))
    capabilities = one_line(", ".join(sorted(advertisement.capabilities)))
    return ConnectionProbe(entry.id, one_line(advertisement.server.get("version", "-")), capabilities)


def _print_table(probes: Sequence[ConnectionProbe]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("id", "ok", "version", "capabilities", "error"):
        table.add_column(column, overflow="fold")
    for probe in probes:
        ok = Text("no", style="red") if probe.error else Text("yes", style="green")
        texts = (probe.version, probe.capabilities, probe.error)
        table.add_row(Text(probe.id), ok, *(Text(text) for text in texts))
    answers().print(table)
