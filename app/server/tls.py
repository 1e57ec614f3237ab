"""TLS of the server: the context of its connections, and the renewal of its certificate while it serves.

A client certificate opens a connection and does not identify a tenant.
"""

import asyncio
import ssl
from pathlib import Path

from app.settings.certificate import certificate_expiry
from app.settings.field_errors import FieldError, SettingsError
from app.settings.file_watch import Watch
from app.settings.server_security import ServerTls
from app.telemetry.logs import logger


class ServerCertificate:
    """The certificate of the server. A renewed one in the same files is used by the next connection."""

    def __init__(self, settings: ServerTls) -> None:
        """Reads files. Raises SettingsError."""
        self._settings = settings
        files = (settings.cert_file, settings.key_file, settings.client_ca_file)
        self._watch = Watch(Path(file) for file in files if file)  # before they are read, so that no change is missed
        self.context = self._current = server_context(settings)
        """The context that listeners are opened with."""
        self.expires = certificate_expiry(settings.cert_file)
        """Unix time at which the certificate in use, or one of its chain, expires."""
        # Listeners keep their context for good. The callback gives each handshake the newest one, with or without SNI;
        # loading new files into the old context instead could leave it with a certificate that lacks its key.
        self.context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if connection.context is not self._current:
            connection.context = self._current

    async def renew(self) -> None:
        """Use the files anew if their content has changed. A faulty file changes nothing, and is logged."""
        if not await asyncio.to_thread(self._watch.changed):
            return
        try:
            renewed = await asyncio.to_thread(server_context, self._settings)
            self.expires = await asyncio.to_thread(certificate_expiry, self._settings.cert_file)
        except SettingsError as fault:
            # Certificate and key are two files: the next look comes when the other has been written as well.
            logger().error("certificate_not_renewed", faults=[str(one) for one in fault.faults])
            return
        except (OSError, ValueError) as fault:  # replaced between the two steps; the next look sees the change
            logger().error("certificate_not_renewed", faults=[f"server.tls.cert_file: {fault}"])
            return
        self._current = renewed
        logger().info("certificate_renewed", file=self._settings.cert_file, expires=self.expires)

    def __repr__(self) -> str:
        return f"<ServerCertificate {self._settings.cert_file}, expires {self.expires:.0f}>"


def server_context(settings: ServerTls) -> ssl.SSLContext:
    """The context of a server. With `client_ca_file`, clients need a certificate of one of these authorities.

    Reads files. Raises SettingsError, which names the setting at fault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for name in ("cert_file", "key_file", "client_ca_file"):
        _require_readable(name, getattr(settings, name))
    try:
        # An empty password: a key that wants one must fail, not ask at the terminal.
        context.load_cert_chain(settings.cert_file, settings.key_file, password="")
    except (OSError, ValueError) as fault:
        name = "key_file" if settings.key_file else "cert_file"
        raise _refused(name, _reason(fault), "it takes a PEM certificate, and its PEM key without a password") from None
    if settings.client_ca_file is not None:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ValueError) as fault:
            raise _refused("client_ca_file", _reason(fault), "it takes PEM certificates of authorities") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _require_readable(name: str, path: str | None) -> None:
    """The TLS library does not say which of its files it cannot read."""
    if path is not None:
        try:
            with Path(path).open("rb"):
                return
        except (OSError, ValueError) as fault:
            raise _refused(name, f"'{path}' cannot be read: {getattr(fault, 'strerror', None) or fault}") from None


def _refused(name: str, message: str, suggestion: str | None = None) -> SettingsError:
    return SettingsError("settings", (FieldError(f"server.tls.{name}", message, suggestion),))


def _reason(fault: OSError | ValueError) -> str:
    reason = getattr(fault, "reason", None)
    return f"cannot be used: {reason.lower().replace('_', ' ') if reason else 'it is not what it should be'}"
