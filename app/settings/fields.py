"""Building blocks of the settings models: the strict base classes, and text types for ids, URLs and headers.

Messages of these types never repeat a value, because it may be a secret.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

ANNOTATION = r"^(\$schema$|description$|x-)"
"""Keys for people and editors: allowed and ignored in every object with a fixed set of keys."""

_is_annotation = re.compile(ANNOTATION).search


def without_annotations(value: Any) -> Any:
    """An object of a file without its annotations; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    return {key: held for key, held in value.items() if not (isinstance(key, str) and _is_annotation(key))}


class MisplacedKey(ValueError):
    """A fault found by a validator of several keys; `at` is the path from the validated object to the key at fault."""

    def __init__(self, message: str, *at: str | int) -> None:
        super().__init__(message)
        self.at = at


def check_unique(values: Iterable[str], name: str, key: str) -> None:
    """Raises MisplacedKey if two entries of the list `name` have the same value of `key`."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in seen:
            raise MisplacedKey(f"'{value}' is already the {key} of {name}[{seen[value]}]", name, index, key)
        seen[value] = index


class Section(BaseModel):
    """Base of the sections of `gateway.yaml` and the tenants file: strict types, unknown keys rejected, frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"patternProperties": {ANNOTATION: {}}},
    )

    @model_validator(mode="before")
    @classmethod
    def _ignore_annotations(cls, value: Any) -> Any:
        return without_annotations(value)


class RegistrySection(Section):
    """Base of the objects of the registry: camelCase in the file, as in RCP."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


def words(value: Any) -> Any:
    """Split a comma-separated string into a list, so that an environment variable can set a list."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def on_or_off(value: Any) -> Any:
    """YAML reads a bare `on` or `off` as true or false."""
    return {True: "on", False: "off"}[value] if type(value) is bool else value


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with alternative names of keys replaced (`names`: alternative name -> key).

    Raises MisplacedKey if a key is given under both names.
    """
    if not isinstance(value, dict):
        return value
    for other, key in names.items():
        if other in value and key in value:
            raise MisplacedKey(f"is given twice, also as '{other}'", key)
    return {names.get(key, key): held for key, held in value.items()}


def file_name(model: type[BaseModel], field: str) -> str:
    """The key of `field` as it is written in the file."""
    info: Any = model.model_fields[field]
    return info.alias or field


def _engine_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", text):
        raise ValueError("must start with a letter or digit and contain only letters, digits and . _ / -")
    return text


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[^\s:\x00-\x1f\x7f]+", text):
        raise ValueError("must not contain ':' or spaces")
    return text


# Framing and connection headers: a second value would break the request or change how it is read.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "accept", "accept-encoding", "te"}
    | {"upgrade", "keep-alive", "proxy-connection", "trailer", "expect"}
)


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise ValueError("is not a header name")
    if name.lower() in _OWN_HEADERS:
        raise ValueError("is a header that the gateway sets itself")
    return name


def _header_value(value: str) -> str:
    # The message must not repeat the value: it is usually a secret.
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError("the value contains a line break or another control character")
    if not value.isascii():
        raise ValueError("the value contains non-ASCII characters")
    return value


def _host(text: str) -> str:
    if not re.fullmatch(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]*::[0-9A-Fa-f:.]*)(?::\d{1,5})?", text):
        raise ValueError("must be a host or host:port, without scheme and path")
    return text.lower()


def address_of(url: str, example: str, where: str = "in 'headers' with ${ENV_NAME}") -> str:
    """`url`, if it is a usable HTTP URL without credentials; `where` says where credentials belong instead.

    Raises ValueError. The message never quotes the URL, because it may contain keys.
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
        raise ValueError("must be ASCII without a fragment or spaces (percent-encode other characters)")
    return url


def _engine_url(url: str) -> str:
    return address_of(url, "http://127.0.0.1:8000/rcp")


def _collector_url(url: str) -> str:
    return address_of(url, "http://collector:4318/v1/traces", "into the environment: OTEL_EXPORTER_OTLP_HEADERS")


def _link_url(url: str) -> str:
    return address_of(url.replace("{request_id}", "id"), "https://grafana.example/d/rcp", "into the browser") and url


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError("must be an IP address or network, such as 10.0.0.0/8") from None
    return text


Network = Annotated[str, AfterValidator(_network)]
Topic = Annotated[str, Field(min_length=1, max_length=400)]
EngineId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_engine_id)]
Namespace = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_namespace)]
Host = Annotated[str, Field(min_length=1, max_length=262), AfterValidator(_host)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[str, AfterValidator(_header_value)]
LinkUrl = Annotated[str, Field(max_length=2000), AfterValidator(_link_url)]
CollectorUrl = Annotated[str, AfterValidator(_collector_url)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
