"""Types of the section `server` of `gateway.yaml`: origins of web pages (CORS), and TLS."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from app.settings.fields import Section, renamed

PORTS = {"http": 80, "https": 443}


def _web_origin(text: str) -> str:
    """An origin as browsers send it. It is compared as text, so it is normalised here."""
    lowered = text.lower()
    try:
        parts = urlsplit(lowered)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname or lowered != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("must be an origin, such as https://app.example or http://localhost:3000")
    if "@" in parts.netloc or not lowered.isascii() or any(char.isspace() or char in "*,;\"'" for char in lowered):
        raise ValueError("must be one full origin, without credentials or wildcards")
    return lowered.removesuffix(f":{port}") if port == PORTS[parts.scheme] else lowered


WebOrigin = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_web_origin)]


AS_TO_ENGINES = {"certFile": "cert_file", "keyFile": "key_file", "clientCaFile": "client_ca_file"}
"""The registry's spelling of the keys of `tls`, which is accepted here as well."""


class ServerTls(Section):
    """TLS of the server (1.2 or newer): paths of PEM files. Renewed files are used by the next connection."""

    cert_file: str = Field(min_length=1)
    """Certificate of the server, followed by intermediate certificates."""
    key_file: str | None = Field(default=None, min_length=1)
    """Its private key, without a password. If absent, the key is in `cert_file`."""
    client_ca_file: str | None = Field(default=None, min_length=1)
    """Certificate authorities of clients. If set, clients need a certificate of one of them. It does not identify a
    tenant."""

    @model_validator(mode="before")
    @classmethod
    def _as_to_engines(cls, value: Any) -> Any:
        return renamed(value, AS_TO_ENGINES)
