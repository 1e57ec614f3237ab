"""Opens the listening sockets of a gateway: for its endpoints, and for metrics if they have a separate port."""

import socket

from app.settings.field_errors import FieldError, SettingsError


def listen(host: str, port: int) -> socket.socket:
    """Listen there; workers may inherit it. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.set_inheritable(True)
    return listener


def listen_for_metrics(host: str, port: int | None) -> list[socket.socket]:
    """The one listener of `metrics.port`; none where it is not set. Raises SettingsError."""
    if not port:
        return []
    try:
        return [listen(host, port)]
    except OSError as fault:
        message = f"{host}:{port} cannot be listened on: {fault.strerror or fault}"
        raise SettingsError("settings", (FieldError("metrics.port", message, "choose another port"),)) from None
