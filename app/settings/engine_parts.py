"""Those keys of an engine's entry in the registry that hold keys of their own: `tls` and `breaker`.

Settings room. It decides what they may hold; it refuses to know the entry (`schema.py`) and what is done with them.
"""

from pydantic import Field, model_validator

from app.settings.fields import MisplacedKey, RegistrySection


class EngineTls(RegistrySection):
    """TLS towards one engine: paths of PEM files. Without `caFile` the system's authorities are trusted."""

    ca_file: str | None = None
    """PEM file of the authorities to trust; without it the system's."""
    cert_file: str | None = None
    """PEM file of our certificate."""
    key_file: str | None = None
    """PEM file of its key; needs `certFile` beside it."""

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> "EngineTls":
        if self.key_file and not self.cert_file:
            raise MisplacedKey("needs 'certFile' beside it", "keyFile")
        return self


class EngineBreaker(RegistrySection):
    """When one engine is left alone for a while; a key that is absent is as in the section `engines`."""

    failures: int | None = Field(default=None, ge=0, le=1000)
    """Instead of `engines.breaker_failures`."""
    window: int | None = Field(default=None, ge=1, le=1000)
    """Instead of `engines.breaker_window`."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Instead of `engines.breaker_share`."""
    open_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Instead of `engines.breaker_open_ms`."""
    longest_open_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Instead of `engines.breaker_longest_open_ms`."""
