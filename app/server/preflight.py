"""What must be in order before the gateway may start. `serve`, `stdio` and `check` all ask here.

Files that settings and registry name are opened, and libraries looked for. Nothing is started and no network is used.
"""

from pathlib import Path

from app.api.optional_features import missing_extras
from app.engines.http.endpoint import tls_context
from app.protocol.errors import LegError
from app.server.tls import server_context
from app.settings.auth import exposure
from app.settings.field_errors import FieldError, SettingsError
from app.settings.schema import EngineEntry, GatewaySettings
from app.settings.sources import LoadedRegistry, error_in


def start_faults(
    loaded: LoadedRegistry,
    settings: GatewaySettings,
    *,
    registry: Path,
    config: Path | None,
    host: str | None = None,
    workers: int | None = None,
    over_http: bool = True,
) -> list[SettingsError]:
    """Every reason why this gateway must not start, by file; none if it may.

    `host` and `workers` are those of the command line, None for the settings' own. Over stdio (`over_http` false)
    nothing listens, so settings of listeners do not matter.
    """
    faults = list(missing_extras(settings, over_http=over_http))
    if over_http:
        faults += _listener_faults(settings, host, workers)
    in_registry = [
        fault for place, entry in enumerate(loaded.registry.engines) for fault in _engine_faults(place, entry)
    ]
    return [error_in(file, of_file) for file, of_file in ((config, faults), (registry, in_registry)) if of_file]


def _listener_faults(settings: GatewaySettings, host: str | None, workers: int | None) -> list[FieldError]:
    server, faults = settings.server, []
    exposed = exposure(server.host if host is None else host, settings.auth)
    if exposed is not None:
        faults.append(exposed)
    count = server.workers if workers is None else workers
    if count > 1 and server.handshake == "required" and not settings.state.shared:
        remedy = "set state.url, or start one worker"
        faults.append(FieldError("server.handshake", "'required' needs one worker or a shared state", remedy))
    if server.tls is not None:
        try:
            server_context(server.tls)
        except SettingsError as fault:
            faults += fault.faults
    return faults


def _engine_faults(place: int, entry: EngineEntry) -> list[FieldError]:
    """What is wrong with the certificates and keys of one engine. A disabled engine needs none."""
    if entry.tls is None or not entry.enabled:
        return []
    try:
        tls_context(entry.tls)
    except LegError as fault:
        # The message begins with the key: `tls.caFile: No such file or directory`.
        key, _, reason = fault.message.partition(": ")
        file = entry.tls.ca_file if key == "tls.caFile" else entry.tls.cert_file
        return [FieldError(f"engines[{place}].{key}", f"'{file}' cannot be used: {reason}")]
    return []
