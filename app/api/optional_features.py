"""Optional libraries: which settings need one, and what is built with it.

A setting whose library is not installed keeps the gateway from starting, with the extra to install. The libraries are
imported only where a setting needs them.
"""

from collections.abc import Callable
from importlib.util import find_spec

from app.api.auth.authentication import TokenVerifier
from app.settings.field_errors import FieldError
from app.settings.schema import GatewaySettings
from app.telemetry.tracing import Tracing, tracing_to


def installed(library: str) -> bool:
    """Whether `library`, a dotted name, can be imported."""
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # a parent of it is not there
        return False


def missing_extras(settings: GatewaySettings, *, over_http: bool = True) -> tuple[FieldError, ...]:
    """A fault for each setting whose library is not installed. Over stdio there are no tokens."""
    needs = (
        ("state.url", settings.state.shared, "redis", "redis"),
        ("auth.mode", over_http and "jwt" in settings.auth.mode, "joserfc", "jwt"),
        ("traces.endpoint", settings.traces.endpoint is not None, "opentelemetry.exporter.otlp.proto.http", "otel"),
    )
    return tuple(
        FieldError(
            path,
            f"needs the library '{library.partition('.')[0]}', which is not installed",
            f"in the checkout, pip install '.[{extra}]'",
        )
        for path, wanted, library, extra in needs
        if wanted and not installed(library)
    )


def tracing(settings: GatewaySettings, version: str, lost: Callable[[int], None]) -> Tracing | None:
    """What makes spans, if `traces.endpoint` is set. `lost` counts the spans that the collector did not take."""
    traces = settings.traces
    if traces.endpoint is None:
        return None
    return tracing_to(traces.endpoint, traces.ratio, settings.server.name, version, lost)


def token_verifier(settings: GatewaySettings) -> TokenVerifier | None:
    """What verifies tokens, if any are accepted."""
    if "jwt" not in settings.auth.mode:
        return None
    from app.api.auth.jwks import SigningKeys
    from app.api.auth.jwt import JwtVerifier

    return JwtVerifier(settings.jwt, SigningKeys(settings.jwt))
