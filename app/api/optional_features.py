"""Features that need an optional library: tokens, traces, shared state.

The gateway does not start if a setting needs a library that is not installed; the error names the extra to install. The
libraries are imported only if a setting needs them.
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
    except ModuleNotFoundError:  # a parent package is missing
        return False


def missing_extras(settings: GatewaySettings, *, over_http: bool = True) -> tuple[FieldError, ...]:
    """An error for each setting whose library is not installed. Over stdio there is no authentication."""
    needs = (
        ("state.url", settings.state.shared, "redis", "redis"),
        ("auth.mode", over_http and "jwt" in settings.auth.mode, "joserfc", "jwt"),
        ("traces.endpoint", settings.traces.endpoint is not None, "opentelemetry.exporter.otlp.proto.http", "otel"),
    )
    return tuple(
        FieldError(
            path,
            f"needs the library '{library.partition('.')[0]}', which is not installed",
            f"in the checkout, run pip install '.[{extra}]'",
        )
        for path, wanted, library, extra in needs
        if wanted and not installed(library)
    )


def tracing(settings: GatewaySettings, version: str, lost: Callable[[int], None]) -> Tracing | None:
    """Creates and exports spans, if `traces.endpoint` is set. `lost` counts spans that could not be exported."""
    traces = settings.traces
    if traces.endpoint is None:
        return None
    return tracing_to(traces.endpoint, traces.ratio, settings.server.name, version, lost)


def token_verifier(settings: GatewaySettings) -> TokenVerifier | None:
    """Verifies tokens, if `auth.mode` includes `jwt`."""
    if "jwt" not in settings.auth.mode:
        return None
    # Imported here, because these modules need the optional libraries.
    from app.api.auth.jwks import SigningKeys
    from app.api.auth.jwt import JwtVerifier

    return JwtVerifier(settings.jwt, SigningKeys(settings.jwt))
