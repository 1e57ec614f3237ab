"""A server that cannot be reached: each kind of failure is told apart, by every command, with what to do about it."""

import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, create_server, socket
from threading import Thread
from typing import Any

import pytest
from typer.testing import Result

from tests.support.authority import Authority
from tests.support.ports import free_port

pytest.importorskip("ir_measures", reason="its binary part is not built for this kind of machine")

Run = Callable[..., Result]
Commands = dict[str, Callable[[str], list[str]]]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Every command that asks a server, as its words for a URL."""
    queries, qrels = tmp_path / "q.jsonl", tmp_path / "qrels.tsv"
    queries.write_text('{"qid": "1", "query": "what"}\n')
    qrels.write_text("1 0 d1 1\n")
    judged = ["--queries", str(queries), "--qrels", str(qrels)]
    return {
        "query": lambda url: ["query", "what", "--url", url, "--timeout", "1"],
        "engines": lambda url: ["engines", "--url", url, "--timeout", "1"],
        "eval": lambda url: ["eval", "--url", url, "--timeout", "1", *judged],
        "eval of named engines": lambda url: ["eval", "--url", url, "--timeout", "1", "--engines", "a", *judged],
        "tune": lambda url: ["tune", "--url", url, "--timeout", "1", *judged],
        "conformance": lambda url: ["conformance", url, "--timeout", "1"],
    }


@contextmanager
def peer(act: Callable[[socket], None]) -> Iterator[int]:
    """The port of a server that does this with each of its connections."""
    with create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with suppress(OSError):  # closed by the test
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        act(connection)

        thread = Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(2)
            thread.join()


def over_tls(context: ssl.SSLContext) -> Callable[[socket], None]:
    """Answers over TLS with an empty list of engines, which is also a response without hits."""
    body = b'{"jsonrpc": "2.0", "id": 1, "engines": [], "result": {"hits": []}}'

    def act(connection: socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(65_536)
            secured.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return act


def reset(connection: socket) -> None:
    request = connection.recv(65_536)
    if request.startswith(b"POST"):
        while not request.endswith(b"}"):
            request += connection.recv(65_536)
    connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))


def leave(connection: socket) -> None:
    connection.recv(65_536)


def talk_ssh(connection: socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    connection.recv(65_536)


def told(result: Result) -> str:
    """What a command says of a server that it could not reach, in one line."""
    assert result.exit_code == 1
    return " ".join((result.stderr + result.stdout).split())


ALL = ("query", "engines", "eval", "eval of named engines", "tune", "conformance")


@pytest.mark.parametrize("command", ALL)
def test_a_certificate_of_an_unknown_authority(command: str, commands: Commands, run: Run, tmp_path: Path) -> None:
    """It is no gateway that is not running; the remedy names the option, and the option helps."""
    authority = Authority(tmp_path)
    with peer(over_tls(authority.server("localhost"))) as port:
        url = f"https://localhost:{port}"
        found = told(run(*commands[command](url)))
        trusting = run(*commands[command](url), "--ca-file", authority.ca_file)
    assert f"the TLS certificate of {url} is not trusted" in found
    assert "--ca-file or SSL_CERT_FILE" in found
    assert "no gateway is running" not in found
    assert "trusted" not in trusting.stderr + trusting.stdout


@pytest.mark.parametrize("command", ALL)
def test_the_environment_names_an_authority(
    command: str, commands: Commands, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE counts as it does for other programs; a name of no file is told."""
    authority = Authority(tmp_path)
    with peer(over_tls(authority.server("localhost"))) as port:
        words = commands[command](f"https://localhost:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)
        assert "trusted" not in (trusting := run(*words)).stderr + trusting.stdout
        monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
        assert "SSL_CERT_FILE names '/no/such.pem', which is not a file" in told(run(*words))


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (reset, "reset the connection; check its log; if it serves HTTPS, write https://"),
        (leave, "closed the connection without a response"),
        (talk_ssh, "does not speak HTTP; check the port"),
    ],
)
def test_a_peer_that_is_no_gateway(
    command: str, act: Callable[[socket], None], wanted: str, commands: Commands, run: Run
) -> None:
    """What breaks off, and what speaks something else, is told from one that is not there."""
    with peer(act) as port:
        assert wanted in told(run(*commands[command](f"http://127.0.0.1:{port}")))


@pytest.mark.parametrize("command", ALL)
def test_nobody_listens(command: str, commands: Commands, run: Run) -> None:
    """A refused connection is the one case in which nothing is running there."""
    found = told(run(*commands[command](f"http://127.0.0.1:{free_port()}")))
    assert ("no server is listening at" if command == "conformance" else "no gateway is running at") in found


@pytest.mark.parametrize("command", ALL)
def test_a_name_that_is_not_known(command: str, commands: Commands, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt host is told as such, without asking a name server for it."""

    def unknown(*_: Any, **__: Any) -> Any:
        import socket as module

        raise module.gaierror(module.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    found = told(run(*commands[command]("http://gateway.invalid")))
    assert "the name 'gateway.invalid' does not exist; check the spelling" in found


def test_a_certificate_for_another_name(run: Run, tmp_path: Path) -> None:
    """The authority is trusted and the name differs: another remedy."""
    authority = Authority(tmp_path)
    with peer(over_tls(authority.server("gateway.example"))) as port:
        found = told(run("engines", "--url", f"https://localhost:{port}", "--ca-file", authority.ca_file))
    assert "is for another name than 'localhost'; use the name that is in the certificate" in found


def test_plain_http_where_tls_was_expected(run: Run) -> None:
    """The scheme is at fault, and the remedy names the other one."""
    with peer(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        found = told(run("engines", "--url", f"https://127.0.0.1:{port}"))
    assert "does not speak TLS; if it serves plain HTTP, write http://" in found


def test_silence_during_the_handshake_and_after_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that does not come about is told from an answer that does not."""
    monkeypatch.setattr("app.cli.gateway_client.GRACE_SECONDS", 0.0)
    with create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        plain = told(run("engines", "--url", f"http://{address}", "--timeout", "0.05"))
        secure = told(run("engines", "--url", f"https://{address}", "--timeout", "0.05"))
    assert plain.startswith(f"error: no answer from http://{address} within 0.05 seconds")
    assert secure.startswith(f"error: no connection to https://{address} within 0.05 seconds")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_is_none(content: str | None, run: Run, tmp_path: Path) -> None:
    """It is named before anybody is asked."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    found = told(run("engines", "--url", "https://127.0.0.1:1", "--ca-file", file))
    assert found.startswith(f"error: --ca-file: '{file}' cannot be used: ")
