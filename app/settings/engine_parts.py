"""The nested objects of an engine's entry in the registry: `tls`, `breaker` and `shadow`."""

from pydantic import Field, model_validator

from app.settings.fields import MisplacedKey, RegistrySection


class EngineTls(RegistrySection):
    """TLS to one engine: paths of PEM files."""

    ca_file: str | None = None
    """PEM file of trusted certificate authorities; default: those of the system."""
    cert_file: str | None = None
    """PEM file of the client certificate."""
    key_file: str | None = None
    """PEM file of its private key; needs `certFile`."""

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> "EngineTls":
        if self.key_file and not self.cert_file:
            raise MisplacedKey("needs 'certFile'", "keyFile")
        return self


class EngineBreaker(RegistrySection):
    """Circuit breaker of one engine. Absent keys are taken from the section `engines`."""

    failures: int | None = Field(default=None, ge=0, le=1000)
    """Overrides `engines.breaker_failures`."""
    window: int | None = Field(default=None, ge=1, le=1000)
    """Overrides `engines.breaker_window`."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Overrides `engines.breaker_share`."""
    open_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Overrides `engines.breaker_open_ms`."""
    longest_open_ms: int | None = Field(default=None, ge=1, le=3_600_000)
    """Overrides `engines.breaker_longest_open_ms`."""


class EngineShadow(RegistrySection):
    """Makes an engine a shadow engine: asked and compared, but never part of an answer."""

    share: float = Field(gt=0, le=1)
    """Share of questions that it is asked, chosen by a hash of the question."""
    of: str | None = Field(default=None, min_length=1, max_length=128)
    """Id of the engine that it would replace. Feedback is compared only with `of`."""
