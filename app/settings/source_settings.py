"""Settings of engine sources: files of other teams whose engines join the registry, and what each team may claim."""

import re
from ipaddress import ip_network
from pathlib import PurePath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from app.settings.fields import HeaderName, HeaderValue, MisplacedKey, Section, address_of, check_unique

MAIN = "main"
"""Name of the source that is the registry file itself."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _source_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", text):
        raise ValueError("must start with a lower-case letter or digit and contain only lower-case letters, digits, -")
    if text == MAIN:
        raise ValueError("is the name of the registry file; choose another")
    return text


def _host_pattern(text: str) -> str:
    if "/" in text:
        try:
            return str(ip_network(text))
        except ValueError:
            raise ValueError("is not a network; write it like 10.4.0.0/16, without host bits") from None
    # A star in the middle could be widened by whoever owns the rest of the name.
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", text):
        raise ValueError("must be a host, *.domain or network, with an optional port for names: '*.search.svc:8080'")
    return text.lower()


SourceName = Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_source_name)]
HostPattern = Annotated[str, Field(min_length=1, max_length=262), AfterValidator(_host_pattern)]
VariablePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*]+$", max_length=128)]


class SourceRails(Section):
    """Guard rails of one source: what its files may claim. A file that breaks one changes nothing."""

    id_prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)
    """Prefix that every engine id must have. Default: the name of the source and `/`."""
    namespace: Literal["own", "free"] = "own"
    """`own`: `idNamespace` is the name of the source, and is set to it if absent. `free`: any, or none."""
    hosts: list[HostPattern] = Field(default_factory=list)
    """Hosts that URLs may name: `docs.search.svc`, `*.search.svc:8080`, `10.4.0.0/16`. Empty: no HTTP engine is
    accepted."""
    transports: list[Literal["http", "stdio"]] = Field(default=["http"])
    """Allowed transports. `stdio` lets the file run any program as the gateway's user."""
    env: list[VariablePattern] = Field(default_factory=list)
    """Names of environment variables, with `*`, that `${NAME}` in header values may use."""
    tls_files: bool = False
    """Whether entries may name PEM files with `tls`."""
    required: bool = False
    """Whether engines may be `required`."""
    writer: bool = False
    """Whether engines may be a `writer`, the default target of writes."""
    discover: bool = False
    """Whether engines may be gateways with `discover`."""
    max_weight: float = Field(default=1.0, ge=0, le=1e6)
    """Highest `weight`."""
    max_priority: int = 0
    """Highest `priority`."""
    max_engines: int = Field(default=20, ge=1, le=10_000)
    """Most engines of all files of the source."""
    max_concurrency: int = Field(default=32, ge=1, le=10_000)
    """Highest `maxConcurrency`; `maxWaiting` may be eight times as high."""
    max_timeout_ms: int = Field(default=2000, ge=1, le=600_000)
    """Highest `timeoutMs` and `attemptTimeoutMs`."""
    max_trust: Literal["trusted", "community", "untrusted"] = "community"
    """Highest `maxTrust`; entries without one get it."""


class SourceEntry(Section):
    """One source of engines: files, or a document at a URL."""

    name: SourceName
    """Unique name; a label in metrics and logs."""
    files: str | None = Field(default=None, min_length=1)
    """Registry files of the source: a path whose file name may contain `*`, `?` and `[…]`. Names that begin with a dot
    are passed over."""
    url: str | None = None
    """URL of a registry document: https, or http on loopback. Redirects are not followed."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False)
    """HTTP headers of requests for `url`. Values may contain `${ENV_NAME}`."""
    refresh_seconds: float = Field(default=30.0, ge=1, le=86_400)
    """Interval of requests for `url`, with a jitter of 20 %."""
    tenants: list[str] | None = None
    """Only these tenants may see the engines of the source, and only if their own patterns fit. Absent: all whose
    patterns fit."""
    allow: SourceRails = Field(default_factory=SourceRails)

    @field_validator("files")
    @classmethod
    def _wildcards_in_the_file_name(cls, files: str | None) -> str | None:
        if files is not None and re.search(r"[*?\[]", str(PurePath(files).parent)):
            raise ValueError("may have wildcards in the file name only, not in a directory")
        if files is not None and "**" in files:
            raise ValueError("must not contain '**'")
        return files

    @field_validator("url")
    @classmethod
    def _url_is_private(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(address_of(url, "https://registry.example/search.json"))
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ValueError("must be https://, or http:// on loopback: whoever can change it chooses engines")
        return url

    @model_validator(mode="after")
    def _one_origin(self) -> "SourceEntry":
        if (self.files is None) == (self.url is None):
            raise ValueError("needs either 'files' or 'url'")
        if self.headers and self.url is None:
            raise MisplacedKey("are for 'url' only", "headers")
        return self

    @property
    def id_prefix(self) -> str:
        """The prefix that ids of the source must have."""
        return f"{self.name}/" if self.allow.id_prefix is None else self.allow.id_prefix


class RegistrySettings(Section):
    """Sources of engines besides the registry file (docs/guides/engine-sources.md)."""

    sources: list[SourceEntry] = Field(default_factory=list, max_length=256)
    """Files or documents of other teams, each with guard rails."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "RegistrySettings":
        check_unique((source.name for source in self.sources), "sources", "name")
        return self
