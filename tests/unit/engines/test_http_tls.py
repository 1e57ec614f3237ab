"""TLS to engines: for every HTTP client."""

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from app.protocol.errors import (
    TlsFailed,
)
from app.settings.engine_parts import EngineTls
from tests.support.authority import Authority
from tests.support.raw_peer import (
    Line,
    echo,
)
from tests.support.running_gateway import given_up, until
from tests.support.transport_kinds import HttpKind, Listen, Reach


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_tls_with_own_authority_and_certificate(listen: Listen, reach: Reach, authority: Authority) -> None:
    """An engine whose authority is named and that asks for a certificate is reached, over a kept connection."""
    peer = await listen(echo, tls=authority.server("localhost", asks_for_certificate=True))
    transport = reach(peer.address("localhost"), tls=authority.certified)
    for n in range(3):
        assert (await transport.call("retrieve", {"n": n})).result == {"n": n}
    assert len(peer.lines) == 1


@pytest.mark.parametrize("case", ["unknown authority", "other name", "no such CA file", "no such key file"])
async def test_tls_refusals(listen: Listen, reach: Reach, authority: Authority, case: str) -> None:
    """A certificate that cannot be verified, and files that cannot be read, are class tls; nothing is sent."""
    peer = await listen(echo, tls=authority.server("example.org" if case == "other name" else "localhost"))
    tls = {
        "unknown authority": None,
        "other name": authority.trusted,
        "no such CA file": EngineTls(ca_file=authority.ca_file + ".gone"),
        "no such key file": EngineTls(cert_file=authority.cert_file, key_file=authority.key_file + ".gone"),
    }[case]
    with pytest.raises(TlsFailed) as caught:
        await reach(peer.address("localhost"), tls=tls).call("retrieve", {})
    assert authority.ca_file not in caught.value.message
    assert not peer.requests


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_missing_client_certificate(reach: Reach, authority: Authority, version: ssl.TLSVersion) -> None:
    """An engine that insists on a certificate of ours: class tls, also in TLS 1.3, where it says so only afterwards."""
    context = authority.server("localhost", asks_for_certificate=True)
    context.maximum_version = version

    def refuse(listener: socket.socket) -> None:
        secured = context.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False)
        with suppress(ssl.SSLError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as line, suppress(OSError):
            while line.recv(65_536):  # hanging up with bytes unread would be a reset, which overtakes the alert
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
        with pytest.raises(TlsFailed):
            await reach(f"https://localhost:{listener.getsockname()[1]}", tls=authority.trusted).call("retrieve", {})
        await refusing


async def test_missing_client_certificate_at_a_peer_that_resets(reach: Reach, authority: Authority) -> None:
    """A peer that hangs up with the request unread resets the connection, and its alert may be lost: class tls too."""
    context = authority.server("localhost", asks_for_certificate=True)

    def refuse(listener: socket.socket) -> None:
        secured = context.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False)
        with suppress(ssl.SSLError):
            secured.do_handshake()
        secured.close()

    for _ in range(10):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
            url = f"https://localhost:{listener.getsockname()[1]}"
            with pytest.raises(TlsFailed):
                await reach(url, tls=authority.trusted).call("retrieve", {})
            await refusing


async def test_plain_peer_behind_https(listen: Listen, client: HttpKind, stack: AsyncExitStack) -> None:
    """A peer that speaks no TLS, or hangs up in the handshake, is class tls."""

    async def script(line: Line) -> None:
        if line.number == 1:
            line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    peer = await listen(script)
    for _ in range(2):
        transport = client.to(peer.url.replace("http://", "https://"))
        stack.push_async_callback(transport.close)
        with pytest.raises(TlsFailed):
            await transport.call("retrieve", {})


async def test_cancelled_in_the_handshake(listen: Listen, reach: Reach) -> None:
    """A call that is given up while the TLS handshake hangs closes its half-open connection."""

    async def script(line: Line) -> None:
        await line.until_ended()

    peer = await listen(script)
    calling = reach(peer.url.replace("http://", "https://")).call("retrieve", {})
    await given_up(calling, lambda: len(peer.lines) == 1)
    await until(lambda: peer.open_lines == 0)
