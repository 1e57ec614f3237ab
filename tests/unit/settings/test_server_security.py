"""Origins of web pages as they must be written, and the files of TLS."""

import pytest
from pydantic import ValidationError

from app.settings.schema import GatewaySettings
from app.settings.server_security import ServerTls

BAD_PARTS = (
    *("https://app.example/", "https://a/x", "https://*.example", "https://u:p@a", "https://a?x", "https://a#x"),
    *("https://a b", "https://ä", "https://a:x", "https://[::1", "https://a;"),
)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("https://app.example", "https://app.example"),
        ("HTTPS://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://localhost:80", "http://localhost"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_origins(written: str, kept: str) -> None:
    """Kept as browsers write them: small letters, without the port that goes without saying."""
    settings = GatewaySettings.model_validate({"server": {"cors_origins": [written]}})
    assert settings.server.cors_origins == [kept]


@pytest.mark.parametrize("written", ["*", "null", "app.example", "https://", "ftp://a", "", *BAD_PARTS])
def test_what_is_no_origin(written: str) -> None:
    """Patterns, paths, credentials and other schemes are refused, with the way to write it."""
    with pytest.raises(ValidationError, match=r"must be|at least 1"):
        GatewaySettings.model_validate({"server": {"cors_origins": [written]}})


def test_tls_needs_a_certificate() -> None:
    """A key, or authorities of callers, without a certificate is a fault."""
    for files in ({}, {"key_file": "k"}, {"client_ca_file": "c"}, {"cert_file": ""}):
        with pytest.raises(ValidationError, match="cert_file"):
            ServerTls.model_validate(files)


def test_tls_may_be_written_as_towards_engines() -> None:
    """The registry says `certFile`, and so may this file; a key under both names is a fault that says so."""
    written = {"certFile": "c", "keyFile": "k", "clientCaFile": "a"}
    assert ServerTls.model_validate(written) == ServerTls(cert_file="c", key_file="k", client_ca_file="a")
    with pytest.raises(ValidationError, match="is given twice, also as 'keyFile'"):
        ServerTls.model_validate({**written, "key_file": "k"})
