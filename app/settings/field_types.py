"""Texts in the files of wishes that must have a certain form: ids, URLs, headers. What is wrong is said in words.

No message repeats a value, which may be a secret. It refuses to know which key holds what.
"""

import re
from ipaddress import ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field


def _engine_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", text):
        raise ValueError("must begin with a letter or digit and hold only letters, digits and . _ / -")
    return text


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[^\s:\x00-\x1f\x7f]+", text):
        raise ValueError("must hold neither ':' nor spaces")
    return text


_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "accept", "accept-encoding", "te"}
    | {"upgrade", "keep-alive", "proxy-connection", "trailer", "expect"}
)


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise ValueError("is not a header name")
    if name.lower() in _OWN_HEADERS:
        raise ValueError("is a header that the gateway itself sets")
    return name


def _header_value(value: str) -> str:
    # Never say what the value is: it is a secret more often than not.
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError("the value holds a line break or another control character")
    if not value.isascii():
        raise ValueError("the value holds characters outside ASCII")
    return value


def _host(text: str) -> str:
    if not re.fullmatch(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*)(?::\d{1,5})?", text):
        raise ValueError("must be a host, or host:port, without scheme and path")
    return text.lower()


def address_of(url: str, example: str, where: str = "in 'headers' with ${ENV_NAME}") -> str:
    """`url`, if somebody may be reached there; credentials belong `where` it says.

    Raises ValueError, which never quotes the URL: it may hold keys.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its text may quote the URL, and with it a password
        usable = False
    if not usable:
        raise ValueError(f"must be an http:// or https:// URL with a host, such as {example}")
    if "@" in parts.netloc:
        raise ValueError(f"must not carry credentials; put them {where}")
    if "#" in url or re.search(r"[^\x21-\x7e]", url):
        raise ValueError("must have neither a fragment nor spaces, and be ASCII (percent-encode what is not)")
    return url


def _engine_url(url: str) -> str:
    return address_of(url, "http://127.0.0.1:8000/rcp")


def _collector_url(url: str) -> str:
    return address_of(url, "http://collector:4318/v1/traces", "into the environment: OTEL_EXPORTER_OTLP_HEADERS")


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8") from None
    return text


Network = Annotated[str, AfterValidator(_network)]
EngineId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_engine_id)]
Namespace = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_namespace)]
Host = Annotated[str, Field(min_length=1, max_length=262), AfterValidator(_host)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[str, AfterValidator(_header_value)]
CollectorUrl = Annotated[str, AfterValidator(_collector_url)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
