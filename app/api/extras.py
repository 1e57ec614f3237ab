"""What needs libraries of its own, and is loaded only for those who wish for it: readers of tokens, makers of spans.

It decides that a wish whose library is missing keeps the gateway from starting, and says what to install. It refuses to
know what the libraries do.
"""

from collections.abc import Callable

from app.api.guard import Bearers
from app.settings.faults import Fault, SettingsError
from app.settings.schema import GatewaySettings
from app.telemetry.traces import Tracing, tracing_to


def tracing(settings: GatewaySettings, version: str, lost: Callable[[int], None]) -> Tracing | None:
    """What makes spans, if `traces.endpoint` is set. `lost` counts the spans that the collector did not take."""
    wishes = settings.traces
    if wishes.endpoint is None:
        return None
    try:
        return tracing_to(wishes.endpoint, wishes.ratio, settings.server.name, version, lost)
    except ModuleNotFoundError:
        remedy = "in the checkout, pip install '.[otel]'"
        fault = Fault("traces.endpoint", "traces need a library that is not installed", remedy)
        raise SettingsError("settings", (fault,)) from None


def bearers(settings: GatewaySettings) -> Bearers | None:
    """Who reads tokens, if any are accepted. Only those who wish for them pay for loading it."""
    if "jwt" not in settings.auth.mode:
        return None
    try:
        from app.api.jwks import SigningKeys
        from app.api.tokens import Tokens
    except ModuleNotFoundError:
        fault = Fault("auth.mode", "jwt needs a library that is not installed", "in the checkout, pip install '.[jwt]'")
        raise SettingsError("settings", (fault,)) from None
    return Tokens(settings.jwt, SigningKeys(settings.jwt))
