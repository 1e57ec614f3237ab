"""TLS of the gateway: clients and protocols that it accepts, and the error that a bad file gives before it listens."""

import asyncio
import json
import re
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app import main
from app.server.tls import server_context
from app.settings.certificate import certificate_expiry
from app.settings.field_errors import SettingsError
from app.settings.server_security import ServerTls
from tests.chaos.gateway_process import gateway_process
from tests.support.authority import Authority
from tests.support.running_gateway import PATIENCE, Json

PING: Json = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls_files(authority: Authority, tmp_path: Path) -> Json:
    """The setting `server.tls` of a gateway called localhost."""
    certificate = authority.ca.issue_cert("localhost")
    cert_file, key_file = str(tmp_path / "server.pem"), str(tmp_path / "server.key")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    certificate.cert_chain_pems[0].write_to_path(cert_file)
    certificate.private_key_pem.write_to_path(key_file)
    return {"cert_file": cert_file, "key_file": key_file}


def client_of(authority: Authority, *, certified: bool = False) -> ssl.SSLContext:
    """A caller that trusts the authority and offers HTTP/2 and HTTP/1.1, with a certificate of its own or without."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if certified:
        context.load_cert_chain(authority.cert_file, authority.key_file)
    return context


async def shaken(port: int, context: ssl.SSLContext) -> bytes:
    """What comes back over TLS to a ping, empty if nobody is spoken with."""
    body = json.dumps(PING).encode()
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context, family=socket.AF_INET)
    except (ssl.SSLError, ConnectionError):
        return b""
    answered = b""
    with suppress(ssl.SSLError, ConnectionError):
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert protocol == "http/1.1"
        head = b"POST /rcp HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        async with asyncio.timeout(PATIENCE):
            answered = await reader.read()
    writer.close()
    with suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return answered


@pytest.mark.parametrize("workers", [1, 2])
async def test_https_is_served(authority: Authority, tls_files: Json, tmp_path: Path, workers: int) -> None:
    """A real gateway answers over TLS, in HTTP/1.1 alone, from each of its workers; in plain HTTP it says nothing."""
    settings = {"server": {"tls": tls_files, "workers": workers}}
    async with gateway_process(tmp_path, [], settings) as gateway:
        assert b'"result":{}' in await _until_answered(gateway.port, client_of(authority))
        async with httpx2.AsyncClient(verify=client_of(authority), trust_env=False, timeout=PATIENCE) as client:
            answered = await client.post(f"https://localhost:{gateway.port}/rcp", json=PING)
            assert answered.json()["result"] == {}
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: g\r\n\r\n")
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                assert b"alive" not in await reader.read()
        writer.close()
    assert not gateway.logged("Traceback")
    assert '"tls":true' in gateway.logged('"listening"')[0].replace(" ", "")


async def _until_answered(port: int, context: ssl.SSLContext) -> bytes:
    async with asyncio.timeout(PATIENCE):
        while not (answered := await shaken(port, context)):
            await asyncio.sleep(0.05)
        return answered


async def test_callers_show_a_certificate(authority: Authority, tls_files: Json, tmp_path: Path) -> None:
    """With `client_ca_file` only callers of that authority are spoken with; of another one, or without, none is."""
    (tmp_path / "other").mkdir()
    unknown_client = Authority(tmp_path / "other")
    foreign = client_of(authority)
    foreign.load_cert_chain(unknown_client.cert_file, unknown_client.key_file)
    settings = {"server": {"tls": {**tls_files, "client_ca_file": authority.ca_file}}}
    async with gateway_process(tmp_path, [], settings) as gateway:
        assert b'"result":{}' in await _until_answered(gateway.port, client_of(authority, certified=True))
        for refused in (client_of(authority), foreign):
            assert await shaken(gateway.port, refused) == b""
    assert not gateway.logged("Traceback", '"error"')


def issue(authority: Authority, tls_files: Json, days: float) -> None:
    """Write a certificate that expires in so many days, and its key, to the files of the setting."""
    issued = authority.ca.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=days))
    issued.private_key_pem.write_to_path(tls_files["key_file"])
    issued.cert_chain_pems[0].write_to_path(tls_files["cert_file"])


async def days_left(port: int, authority: Authority) -> float:
    """What the gateway reports at /metrics."""
    async with httpx2.AsyncClient(verify=client_of(authority), trust_env=False, timeout=PATIENCE) as client:
        text = (await client.get(f"https://localhost:{port}/metrics")).text
    return float(re.search(r"^rcp_gateway_certificate_days_left (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


async def shown_to(port: int, authority: Authority, name: str | None) -> str:
    """When the certificate shown to a new caller expires. `name` is sent as SNI, None for a caller that sends none."""
    context = client_of(authority)
    context.check_hostname = name is not None
    options: Json = {"ssl": context, "family": socket.AF_INET, "server_hostname": name or ""}
    _, writer = await asyncio.open_connection("localhost", port, **options)
    expires: str = writer.get_extra_info("peercert")["notAfter"]
    writer.close()
    with suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return expires


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_renewed_certificate_needs_no_restart(
    authority: Authority, tls_files: Json, tmp_path: Path, workers: int
) -> None:
    """The files are replaced while it serves: new connections get the new certificate, with SNI and without."""
    issue(authority, tls_files, days=10)
    settings = {"server": {"tls": tls_files, "workers": workers, "reload_seconds": 0.1}}
    async with gateway_process(tmp_path, [], settings) as gateway:
        assert b'"result":{}' in await _until_answered(gateway.port, client_of(authority))
        assert 9 < await days_left(gateway.port, authority) < 10
        old = await shown_to(gateway.port, authority, "localhost")
        issue(authority, tls_files, days=90)
        async with asyncio.timeout(PATIENCE):
            while len(gateway.logged('"certificate_renewed"')) < workers:
                await asyncio.sleep(0.05)
        for name in ("localhost", None):
            assert await shown_to(gateway.port, authority, name) != old
        async with asyncio.timeout(PATIENCE):  # a worker writes its numbers for the other one once a second
            while not 89 < await days_left(gateway.port, authority) < 90:
                await asyncio.sleep(0.05)
        Path(tls_files["key_file"]).write_text("no key")
        async with asyncio.timeout(PATIENCE):
            while len(gateway.logged('"certificate_not_renewed"')) < workers:
                await asyncio.sleep(0.05)
        assert b'"result":{}' in await shaken(gateway.port, client_of(authority))
    assert not gateway.logged("Traceback")


async def test_renewed_client_authorities_need_no_restart(
    authority: Authority, tls_files: Json, tmp_path: Path
) -> None:
    """`client_ca_file` follows its content as well: callers of the new authority come in, those of the old do not."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    trusted = tmp_path / "callers.pem"
    trusted.write_bytes(authority.ca.cert_pem.bytes())
    settings = {"server": {"tls": {**tls_files, "client_ca_file": str(trusted)}, "reload_seconds": 0.1}}
    newcomer = client_of(authority)
    newcomer.load_cert_chain(other.cert_file, other.key_file)
    async with gateway_process(tmp_path, [], settings) as gateway:
        assert b'"result":{}' in await _until_answered(gateway.port, client_of(authority, certified=True))
        trusted.write_bytes(other.ca.cert_pem.bytes())
        assert b'"result":{}' in await _until_answered(gateway.port, newcomer)
        assert await shaken(gateway.port, client_of(authority, certified=True)) == b""


@pytest.mark.parametrize("year", [2049, 2051])
def test_the_end_of_validity_is_read(authority: Authority, tmp_path: Path, year: int) -> None:
    """Both forms of time in a certificate: from 2050 on it has four digits of the year (RFC 5280 §4.1.2.5)."""
    until = datetime(year, 6, 1, 12, tzinfo=UTC)
    chain = authority.ca.issue_cert("localhost", not_after=until).cert_chain_pems[0].bytes()
    (tmp_path / "one.pem").write_bytes(chain)
    assert certificate_expiry(str(tmp_path / "one.pem")) == until.timestamp()
    sooner = authority.ca.issue_cert("localhost", not_after=until - timedelta(days=1)).cert_chain_pems[0].bytes()
    (tmp_path / "two.pem").write_bytes(chain + sooner)
    assert certificate_expiry(str(tmp_path / "two.pem")) == (until - timedelta(days=1)).timestamp()


def test_old_versions_are_not_spoken(tls_files: Json) -> None:
    """TLS 1.2 is the least, without compression and renegotiation left to chance."""
    context = server_context(ServerTls.model_validate(tls_files))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert context.options & ssl.OP_NO_COMPRESSION


def test_one_file_may_hold_both(tls_files: Json, tmp_path: Path) -> None:
    """Without `key_file` the key stands in `cert_file`."""
    assert server_context(ServerTls(cert_file=str(tmp_path / "both.pem")))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"cert_file": "/nowhere.pem"}, r"server\.tls\.cert_file: '/nowhere\.pem' cannot be read: No such file"),
        ({"key_file": "/nowhere.pem"}, r"server\.tls\.key_file: '/nowhere\.pem' cannot be read"),
        ({"client_ca_file": "/nowhere.pem"}, r"server\.tls\.client_ca_file: '/nowhere\.pem' cannot be read"),
        ({"key_file": "other.key"}, r"server\.tls\.key_file: cannot be used: key values mismatch"),
        ({"key_file": "locked.key"}, r"server\.tls\.key_file: cannot be used: .*without a password"),
        ({"cert_file": "empty.pem"}, r"server\.tls\.key_file: cannot be used: "),
        ({"key_file": None}, r"server\.tls\.cert_file: cannot be used: "),
        ({"client_ca_file": "empty.pem"}, r"server\.tls\.client_ca_file: cannot be used: .*PEM certificates"),
    ],
    ids=str,
)
def test_bad_files_are_told(
    authority: Authority, tls_files: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any, told: str
) -> None:
    """Before anybody listens, the setting that names the file is told, and what is wrong with it."""
    other = authority.ca.issue_cert("localhost").private_key_pem.bytes()
    (tmp_path / "other.key").write_bytes(other)
    (tmp_path / "locked.key").write_bytes(_locked(other))
    (tmp_path / "empty.pem").write_text("")
    named = {key: value and str(tmp_path / value) for key, value in wrong.items()}
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps({"server": {"tls": {**tls_files, **named}}}))
    registry = tmp_path / "rcp.json"
    registry.write_text('{"engines": []}')
    monkeypatch.setattr(main, "listen", lambda *_: pytest.fail("it listens"))
    with pytest.raises(SettingsError, match=told):
        main.serve(registry, config, None, 0, None)


def _locked(key: bytes) -> bytes:
    """The same key with a password."""
    from cryptography.hazmat.primitives import serialization as written

    private: Any = written.load_pem_private_key(key, None)
    return bytes(
        private.private_bytes(
            written.Encoding.PEM, written.PrivateFormat.PKCS8, written.BestAvailableEncryption(b"password")
        )
    )
