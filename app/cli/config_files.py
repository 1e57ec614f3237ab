"""The two files a command is given, and where they are when it is given none.

It decides the defaults of `--registry` and `--config`; it refuses to read them.
"""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_REGISTRY = Path("config/rcp.json")
DEFAULT_CONFIG = Path("config/gateway.yaml")

RegistryOption = Annotated[Path, typer.Option("--registry", help="The engines: a registry file (rcp.json).")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The gateway's settings. By default config/gateway.yaml where there is one.",
        show_default=False,
    ),
]


def config_or_default(config: Path | None) -> Path | None:
    """The settings file to read: the one given, else the default one if it is there, else none."""
    return config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None
