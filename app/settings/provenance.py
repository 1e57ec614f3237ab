"""Where each setting's value comes from: its default, the file, or the environment, which wins over the file.

For people who wonder why something is as it is. Secrets are masked like everywhere else. It refuses to read files.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic_core import PydanticUndefined

from app.settings.environment import PREFIX
from app.settings.masking import masked
from app.settings.schema import GatewaySettings

Source = Literal["default", "file", "environment"]


class Effective(NamedTuple):
    """One setting as it holds; `key` is `section.key`."""

    key: str
    value: Any
    default: Any
    source: Source


def effective(settings: GatewaySettings, environ: Mapping[str, str]) -> list[Effective]:
    """Every setting of `gateway.yaml`, in the order of the schema."""
    names = {name.upper() for name in environ}
    shown = masked(settings)
    found = []
    for section in type(settings).model_fields:
        values = getattr(settings, section)
        written = values.model_fields_set if section in settings.model_fields_set else frozenset()
        for key, info in type(values).model_fields.items():
            default = info.get_default(call_default_factory=True)
            source: Source = "file" if key in written else "default"
            if f"{PREFIX}{section}__{key}".upper() in names:
                source = "environment"
            known = None if default is PydanticUndefined else default
            found.append(Effective(f"{section}.{key}", shown[section][key], known, source))
    return found
