"""The options `--registry` and `--config`, and their defaults."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from app.settings.field_errors import SettingsError

DEFAULT_REGISTRY = Path("config/rcp.json")
DEFAULT_CONFIG = Path("config/gateway.yaml")

RegistryOption = Annotated[Path, typer.Option("--registry", help="Registry file that lists the engines.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file. Default: config/gateway.yaml, if it exists.",
        show_default=False,
    ),
]


def config_or_default(config: Path | None) -> Path | None:
    """The settings file to read: the given one, else the default file if it exists, else None."""
    return config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None


@contextmanager
def faults_located_in(config: Path | None) -> Iterator[None]:
    """Give faults that were found while the gateway was built the name of the settings file and their lines in it."""
    from app.settings.sources import error_in

    try:
        yield
    except SettingsError as fault:
        raise (error_in(config, fault.faults) if fault.file == "settings" else fault) from fault
