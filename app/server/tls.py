"""TLS at the door: the context that connections are accepted with.

It decides which versions and which protocol are spoken, and what is wrong with the files it needs, told by the setting
that names them. It refuses to know who a caller is: a certificate opens the door and makes nobody a tenant.
"""

import ssl
from pathlib import Path
from typing import Any

from app.settings.field_errors import FieldError, SettingsError
from app.settings.server_security import ServerTls


def door_context(wishes: ServerTls, *_: Any) -> ssl.SSLContext:
    """A server's context; with authorities of callers, who shows none of their certificates is not spoken with.

    What stands behind `wishes` is uvicorn's and not needed. Raises SettingsError; reads files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for name in ("cert_file", "key_file", "client_ca_file"):
        _readable(name, getattr(wishes, name))
    try:
        # An empty password: a key that wants one must fail, not ask at the terminal.
        context.load_cert_chain(wishes.cert_file, wishes.key_file, password="")
    except (OSError, ValueError) as fault:
        name = "key_file" if wishes.key_file else "cert_file"
        raise _refused(name, _said(fault), "it takes a PEM certificate, and its PEM key without a password") from None
    if wishes.client_ca_file is not None:
        try:
            context.load_verify_locations(wishes.client_ca_file)
        except (OSError, ValueError) as fault:
            raise _refused("client_ca_file", _said(fault), "it takes PEM certificates of authorities") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _readable(name: str, path: str | None) -> None:
    """The TLS library does not say which of its files it cannot read."""
    if path is not None:
        try:
            with Path(path).open("rb"):
                return
        except (OSError, ValueError) as fault:
            raise _refused(name, f"'{path}' cannot be read: {getattr(fault, 'strerror', None) or fault}") from None


def _refused(name: str, message: str, suggestion: str | None = None) -> SettingsError:
    return SettingsError("settings", (FieldError(f"server.tls.{name}", message, suggestion),))


def _said(fault: OSError | ValueError) -> str:
    reason = getattr(fault, "reason", None)
    return f"cannot be used: {reason.lower().replace('_', ' ') if reason else 'it is not what it should be'}"
