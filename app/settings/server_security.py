"""How the door is closed, as the operator wishes it: names it is served under, web pages that may ask, TLS.

Part of the section `server` of `gateway.yaml`. It decides what is well-formed; it refuses to know requests, and opens
no file.
"""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from app.settings.fields import Section, renamed

PORTS = {"http": 80, "https": 443}


def _web_origin(text: str) -> str:
    """As browsers write it: they compare nothing, so a letter more or less never fits."""
    lowered = text.lower()
    try:
        parts = urlsplit(lowered)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname or lowered != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("must be an origin and nothing more, such as https://app.example or http://localhost:3000")
    if "@" in parts.netloc or not lowered.isascii() or any(char.isspace() or char in "*,;\"'" for char in lowered):
        raise ValueError("must be one origin, written out, without credentials and patterns")
    return lowered.removesuffix(f":{port}") if port == PORTS[parts.scheme] else lowered


WebOrigin = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_web_origin)]


AS_TO_ENGINES = {"certFile": "cert_file", "keyFile": "key_file", "clientCaFile": "client_ca_file"}
"""The registry's way to write the keys of `tls`, which is taken here as well."""


class ServerTls(Section):
    """TLS at the door, TLS 1.2 or newer: paths of PEM files, read when the gateway starts."""

    cert_file: str = Field(min_length=1)
    """Our certificate, and those between it and the authority."""
    key_file: str | None = Field(default=None, min_length=1)
    """Its key, without a password; absent: it stands in `cert_file`."""
    client_ca_file: str | None = Field(default=None, min_length=1)
    """Authorities of callers: only who shows a certificate of one of them is spoken with. It makes nobody a tenant."""

    @model_validator(mode="before")
    @classmethod
    def _as_to_engines(cls, value: Any) -> Any:
        return renamed(value, AS_TO_ENGINES)
