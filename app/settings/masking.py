"""Settings as they may be shown: every effective value, but no secret.

It decides what counts as one: header values, the values in a URL's query, the credentials in a URL, and what a program
is told on its command line. It refuses to know where settings are shown.
"""

import re
from typing import Any

from app.settings.schema import GatewaySettings, Registry

MASK = "***"


def masked(wishes: GatewaySettings | Registry) -> dict[str, Any]:
    """The effective values with the keys of the file, secrets as `***`."""
    shown = wishes.model_dump(mode="json", by_alias=True)
    if isinstance(wishes, Registry):
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
        for section, key in (("jwt", "jwks_url"), ("traces", "endpoint")):
            if shown[section][key] is not None:
                shown[section][key] = masked_url(shown[section][key])
    return shown


def masked_url(url: str) -> str:
    """`url` with every value of its query as `***`; a part without a name is a value."""
    address, mark, query = url.partition("?")
    return address + mark + re.sub(r"(^|&)([^=&]*=)?[^&]*", _mask_pair, query) if mark else url


def _mask_pair(pair: re.Match[str]) -> str:
    return f"{pair[1]}{pair[2] or ''}{MASK}"
