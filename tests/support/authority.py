"""A certificate authority of the tests' own, with what a server and a client need of it."""

import ssl
from pathlib import Path

import trustme

from app.settings.engine_parts import EngineTls


class Authority:
    """Its certificate, and one for a client, lie as PEM files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        person = self.ca.issue_cert("gateway@example.org")
        self.cert_file, self.key_file = str(folder / "cert.pem"), str(folder / "key.pem")
        person.cert_chain_pems[0].write_to_path(self.cert_file)
        person.private_key_pem.write_to_path(self.key_file)

    @property
    def trusted(self) -> EngineTls:
        """The registry entry's `tls` that trusts this authority."""
        return EngineTls(ca_file=self.ca_file)

    @property
    def certified(self) -> EngineTls:
        """The same with a client certificate."""
        return EngineTls(ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file)

    def server(self, *names: str, asks_for_certificate: bool = False) -> ssl.SSLContext:
        """The context of a server with these names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca.issue_cert(*names).configure_cert(context)
        if asks_for_certificate:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
