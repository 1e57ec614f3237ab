"""`rcp-gateway check`: would the gateway start, and, if asked, is everything there that it talks to?

It decides what is reported and the exit code. What may start is decided in `server/preflight.py`, for `serve` as well.
"""

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.config_files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default
from app.cli.failures import explain
from app.cli.gateway_client import trust, unreachable
from app.cli.terminal import answers, harmless, one_line
from app.evaluation.runs import counted

if TYPE_CHECKING:
    from app.settings.schema import EngineEntry, EnginesSettings, GatewaySettings
    from app.settings.sources import LoadedRegistry


@dataclass(frozen=True, slots=True)
class ConnectionProbe:
    """What one engine answered to a handshake, or why it did not."""

    id: str
    version: str = "-"
    capabilities: str = "-"
    error: str = ""


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command()(check)


def check(
    registry: RegistryOption = DEFAULT_REGISTRY,
    config: ConfigOption = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also reach every engine, Redis and the issuer's keys.")
    ] = False,
) -> None:
    """Check the registry and the settings without starting anything."""
    config = config_or_default(config)
    loaded, settings = _read(registry, config)
    if not _may_start(registry, config, loaded, settings):
        raise typer.Exit(1)
    if connect and not _all_there([entry for entry in loaded.registry.engines if entry.enabled], settings):
        raise typer.Exit(1)


def _read(registry: Path, config: Path | None) -> "tuple[LoadedRegistry, GatewaySettings]":
    """Both files, after telling about each; leaves with exit code 1 if one of them is at fault."""
    from app.settings.field_errors import SettingsError
    from app.settings.schema import twins
    from app.settings.sources import load_registry, load_settings

    loaded = settings = None
    try:
        loaded = load_registry(registry, os.environ)
        typer.echo(f"ok: {registry}: {_counted(loaded.registry.engines)}, fingerprint {loaded.fingerprint}")
        for first, second in twins(loaded.registry.engines):
            told = f"engines '{first}' and '{second}' have the same address, so fusion counts it twice; remove one"
            typer.echo(f"warning: {harmless(told)}", err=True)
    except SettingsError as fault:
        _tell_error(explain(fault))
    try:
        settings = load_settings(config, os.environ)
        typer.echo(f"ok: {_origin(config)}")
    except SettingsError as fault:
        _tell_error(explain(fault))
    if loaded is None or settings is None:
        raise typer.Exit(1)
    return loaded, settings


def _may_start(registry: Path, config: Path | None, loaded: "LoadedRegistry", settings: "GatewaySettings") -> bool:
    """Whether `serve` would start with these files, after telling every reason why not."""
    from app import main
    from app.server.preflight import start_faults
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
            asyncio.run(main.rehearse(loaded, settings, tenants))
        except SettingsError as fault:
            faults.append(fault)
    for refusal in faults:
        _tell_error(explain(refusal))
    if tenants is not None:
        keys = sum(len(entry.keys) for entry in tenants.by_id.values())
        typer.echo(f"ok: {settings.auth.tenants_file}: {counted(len(tenants.by_id), 'tenant')}, {counted(keys, 'key')}")
        for line in tenants.strays([entry.id for entry in loaded.registry.engines]):
            _tell_warning(line)
    for place, entry in enumerate(loaded.registry.engines):
        if entry.enabled and entry.command and shutil.which(entry.command[0]) is None:
            _tell_warning(f"engines[{place}].command: the program '{entry.command[0]}' is not found")
    return _ports_are_free(settings) and not faults


def _ports_are_free(settings: "GatewaySettings") -> bool:
    """Whether the gateway could listen. A port in use is a warning: the gateway that runs now may have it."""
    from app.server.listeners import listen

    host, free = settings.server.host, True
    for name, port in (("server.port", settings.server.port), ("metrics.port", settings.metrics.port)):
        try:
            if port:
                listen(host, port).close()
        except OSError as fault:
            line = f"{name}: {host}:{port} cannot be listened on: {fault.strerror or fault}"
            if fault.errno == errno.EADDRINUSE:
                _tell_warning(f"{line}; a gateway that is started now would fail")
            else:
                free = False
                _tell_error(line)
    return free


def _tell_error(line: str) -> None:
    typer.echo(f"error: {harmless(line)}", err=True)


def _tell_warning(line: str) -> None:
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
    """Whether every engine, the shared state and the issuer of tokens answer, after telling about each."""
    greetings = asyncio.run(_greet(entries, settings.engines))
    if greetings:
        _print_table(greetings)
    well = not any(greeting.error for greeting in greetings)
    for name, wanted, ask, well_told in (
        ("state.url", settings.state.shared, _state_fault, "Redis can be reached and written to"),
        ("jwt.jwks_url", "jwt" in settings.auth.mode, _jwks_fault, "it answers"),
    ):
        if wanted:
            fault = asyncio.run(ask(settings))
            if fault is None:
                typer.echo(f"ok: {name}: {well_told}")
            else:
                well = False
                _tell_error(f"{name}: {fault}")
    return well


async def _state_fault(settings: "GatewaySettings") -> str | None:
    """Why the shared state is of no use now, None if it is."""
    from app.state.redis_store import RedisState
    from app.telemetry.state_metrics import StateMetrics

    state = RedisState(settings.state, settings.server.name, lambda: "check", StateMetrics(None))
    try:
        return await state.fault()
    finally:
        await state.close()


async def _jwks_fault(settings: "GatewaySettings") -> str | None:
    """Why no token could be verified now, None if they could."""
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
            fault, url, seconds, "nothing listens at {url}; see that the issuer runs", "jwt.timeout_seconds"
        )
    if response.status_code != 200:
        return f"it answers with HTTP {response.status_code} instead of 200; check the path"
    try:
        keys_in(response.content)
    except (ValueError, ParseError):
        return "what it answers holds no usable key; it must be a JWKS with public keys (RFC 7517)"
    return None


async def _greet(entries: "Sequence[EngineEntry]", settings: "EnginesSettings") -> list[ConnectionProbe]:
    return await asyncio.gather(*(_greet_one(entry, settings) for entry in entries))


async def _greet_one(entry: "EngineEntry", settings: "EnginesSettings") -> ConnectionProbe:
    from app.engines.registry import probe
    from app.protocol.errors import LegError

    try:
        advertisement = await probe(entry, settings)
    except LegError as fault:
        # Here nothing is started again: whoever checks asks once.
        message = re.sub(r"^started again in [\d.]+ s: ", "", fault.message)
        return ConnectionProbe(entry.id, error=one_line(f"{fault.kind}: {message}"))
    capabilities = one_line(", ".join(sorted(advertisement.capabilities)))
    return ConnectionProbe(entry.id, one_line(advertisement.server.get("version", "-")), capabilities)


def _print_table(greetings: Sequence[ConnectionProbe]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("id", "ok", "version", "capabilities", "error"):
        table.add_column(column, overflow="fold")
    for greeting in greetings:
        verdict = Text("no", style="red") if greeting.error else Text("yes", style="green")
        words = (greeting.version, greeting.capabilities, greeting.error)
        table.add_row(Text(greeting.id), verdict, *(Text(word) for word in words))
    answers().print(table)
