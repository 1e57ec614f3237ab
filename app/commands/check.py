"""`rcp-gateway check`: are the registry and the settings sound, and, if asked, are the engines there?

It decides what is reported and the exit code; what is sound is decided in the settings room.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.failure import explain
from app.commands.files import DEFAULT_REGISTRY, ConfigOption, RegistryOption, config_or_default
from app.commands.runs import counted
from app.commands.terminal import answers, harmless, one_line

if TYPE_CHECKING:
    from app.settings.schema import EngineEntry, EnginesSettings, GatewaySettings
    from app.settings.source import LoadedRegistry


@dataclass(frozen=True, slots=True)
class Greeting:
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
        bool, typer.Option("--connect", help="Also shake hands with every engine, and reach the Redis of `state.url`.")
    ] = False,
) -> None:
    """Check the registry and the settings without starting anything."""
    loaded, settings = _read(registry, config_or_default(config))
    entries = [entry for entry in loaded.registry.engines if entry.enabled]
    well = _state_is_sound(settings, connect=connect)
    if connect and entries:
        greetings = asyncio.run(_greet(entries, settings.engines))
        _print_table(greetings)
        well = well and not any(greeting.error for greeting in greetings)
    if not well:
        raise typer.Exit(1)


def _read(registry: Path, config: Path | None) -> "tuple[LoadedRegistry, GatewaySettings]":
    """Both files, after telling about each; leaves with exit code 1 if one of them is at fault."""
    from app.settings.faults import SettingsError
    from app.settings.source import load_registry, load_settings

    loaded = settings = None
    try:
        loaded = load_registry(registry, os.environ)
        typer.echo(f"ok: {registry}: {_counted(loaded.registry.engines)}, fingerprint {loaded.fingerprint}")
    except SettingsError as fault:
        typer.echo(f"error: {harmless(explain(fault))}", err=True)
    try:
        settings = load_settings(config, os.environ)
        typer.echo(f"ok: {_origin(config)}")
    except SettingsError as fault:
        typer.echo(f"error: {harmless(explain(fault))}", err=True)
    if loaded is None or settings is None or not _tls_is_sound(settings) or not _callers_are_sound(loaded, settings):
        raise typer.Exit(1)
    return loaded, settings


def _tls_is_sound(settings: "GatewaySettings") -> bool:
    """Tell what is wrong with the files of `server.tls`, if there are any."""
    from app.api.tls import door_context
    from app.settings.faults import SettingsError

    try:
        if settings.server.tls is not None:
            door_context(settings.server.tls)
    except SettingsError as fault:
        typer.echo(f"error: {harmless(explain(fault))}", err=True)
        return False
    return True


def _callers_are_sound(loaded: "LoadedRegistry", settings: "GatewaySettings") -> bool:
    """Tell about the tenants file, if there is one, and whether the gateway would start where it is to listen."""
    from app.settings.auth import exposure
    from app.settings.faults import SettingsError
    from app.settings.source import load_tenants

    exposed = exposure(settings.server.host, settings.auth)
    if exposed is not None:
        typer.echo(f"error: {harmless(str(exposed))}", err=True)
    try:
        tenants = load_tenants(settings)
    except SettingsError as fault:
        typer.echo(f"error: {harmless(explain(fault))}", err=True)
        return False
    if tenants is not None:
        keys = sum(len(entry.keys) for entry in tenants.by_id.values())
        typer.echo(f"ok: {settings.auth.tenants_file}: {counted(len(tenants.by_id), 'tenant')}, {counted(keys, 'key')}")
        for line in tenants.strays([entry.id for entry in loaded.registry.engines]):
            typer.echo(f"warning: {harmless(line)}", err=True)
    return exposed is None


def _state_is_sound(settings: "GatewaySettings", *, connect: bool) -> bool:
    """Report whether `state.url` can be used and, with `connect`, whether that Redis can be reached and written to."""
    from app.main import open_shared_state
    from app.settings.faults import SettingsError
    from app.telemetry.state import StateMetrics

    if not settings.state.shared:
        return True

    async def look() -> str | None:
        state = open_shared_state(settings, lambda: "check", StateMetrics(None))
        try:
            return await state.fault() if connect else None
        finally:
            await state.close()

    try:
        fault = asyncio.run(look())
    except SettingsError as wrong:
        typer.echo(f"error: {harmless(explain(wrong))}", err=True)
        return False
    if fault is not None:
        typer.echo(f"error: state.url: {harmless(fault)}", err=True)
    elif connect:
        typer.echo("ok: state.url: Redis can be reached and written to")
    return fault is None


def _counted(entries: "Sequence[EngineEntry]") -> str:
    total, off = len(entries), sum(not entry.enabled for entry in entries)
    count = counted(total, "engine")
    return f"{count} ({off} disabled)" if off else count


def _origin(config: Path | None) -> str:
    from app.settings.environment import PREFIX

    source = "built-in settings" if config is None else str(config)
    overridden = sum(name.startswith(PREFIX) for name in os.environ)
    return f"{source}, {overridden} overridden by the environment" if overridden else source


async def _greet(entries: "Sequence[EngineEntry]", settings: "EnginesSettings") -> list[Greeting]:
    return await asyncio.gather(*(_greet_one(entry, settings) for entry in entries))


async def _greet_one(entry: "EngineEntry", settings: "EnginesSettings") -> Greeting:
    from app.engines.registry import probe
    from app.protocol.errors import LegError

    try:
        advertisement = await probe(entry, settings)
    except LegError as fault:
        # Here nothing is started again: whoever checks asks once.
        message = re.sub(r"^started again in [\d.]+ s: ", "", fault.message)
        return Greeting(entry.id, error=one_line(f"{fault.kind}: {message}"))
    capabilities = one_line(", ".join(sorted(advertisement.capabilities)))
    return Greeting(entry.id, one_line(advertisement.server.get("version", "-")), capabilities)


def _print_table(greetings: Sequence[Greeting]) -> None:
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
