"""Settings as shown to operators: every effective value, where it comes from, and secrets masked.

Masked are header values, the values of a URL's query, credentials in a URL, and arguments of a command.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic_core import PydanticUndefined

from app.settings.environment import PREFIX
from app.settings.schema import GatewaySettings, Registry

MASK = "***"


def masked(settings: GatewaySettings | Registry) -> dict[str, Any]:
    """The effective values by the keys of the file, with secrets as `***`."""
    shown = settings.model_dump(mode="json", by_alias=True)
    if isinstance(settings, Registry):
        for entry in shown["engines"]:
            if entry["command"] is not None:
                entry["command"] = entry["command"][:1] + [MASK] * len(entry["command"][1:])
            entry["headers"] = dict.fromkeys(entry["headers"], MASK)
            if entry["url"] is not None:
                entry["url"] = masked_url(entry["url"])
            entry["replicas"] = [masked_url(url) for url in entry["replicas"]]
    else:
        shown["state"]["url"] = masked_url(re.sub(r"//.*@", f"//{MASK}@", shown["state"]["url"]))
        if shown["auth"]["secret"] is not None:
            shown["auth"]["secret"] = MASK
        for source in shown["registry"]["sources"]:
            source["headers"] = dict.fromkeys(source["headers"], MASK)
            if source["url"] is not None:
                source["url"] = masked_url(source["url"])
        for section, key in (("jwt", "jwks_url"), ("traces", "endpoint")):
            if shown[section][key] is not None:
                shown[section][key] = masked_url(shown[section][key])
    return shown


def masked_url(url: str) -> str:
    """`url` with every value of its query as `***`; a part without a name counts as a value."""
    address, mark, query = url.partition("?")
    return address + mark + re.sub(r"(^|&)([^=&]*=)?[^&]*", _mask_pair, query) if mark else url


def _mask_pair(pair: re.Match[str]) -> str:
    return f"{pair[1]}{pair[2] or ''}{MASK}"


Source = Literal["default", "file", "environment"]


class EffectiveSetting(NamedTuple):
    """One setting in force; `key` is `section.key`."""

    key: str
    value: Any
    default: Any
    source: Source


def effective(settings: GatewaySettings, environ: Mapping[str, str]) -> list[EffectiveSetting]:
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
            found.append(EffectiveSetting(f"{section}.{key}", shown[section][key], known, source))
    return found
