"""An engine's URL taken apart, its request targets and headers, and the words for not reaching it."""

import errno
import ssl

import pytest

from app.engines.error_classification import counts_as_failure, marks_down
from app.engines.http.endpoint import Endpoint, request_headers, tls_context
from app.protocol.errors import Refused, TlsFailed
from app.settings.engine_parts import EngineTls
from app.settings.schema import EngineEntry


@pytest.mark.parametrize(
    ("url", "authority", "label", "target"),
    [
        ("http://engine/rcp", "engine", "engine:80", "/rcp/retrieve"),
        ("http://engine", "engine", "engine:80", "/retrieve"),
        ("http://engine/", "engine", "engine:80", "/retrieve"),
        ("https://Engine:443/rcp/", "engine", "engine:443", "/rcp/retrieve"),
        ("https://engine:8443/a/b?key=x&y", "engine:8443", "engine:8443", "/a/b/retrieve?key=x&y"),
        ("http://[::1]:8000/rcp", "[::1]:8000", "[::1]:8000", "/rcp/retrieve"),
        ("http://[::1]/rcp", "[::1]", "[::1]:80", "/rcp/retrieve"),
    ],
)
def test_url_taken_apart(url: str, authority: str, label: str, target: str) -> None:
    """Host header, label for notes and request target of the URLs that a registry may hold."""
    endpoint = Endpoint.of(url)
    assert (endpoint.authority, endpoint.label, endpoint.target("retrieve")) == (authority, label, target)


def test_method_in_the_path() -> None:
    """Slashes of a method stay, what has a meaning in a URL or in a request line is encoded."""
    endpoint = Endpoint.of("http://engine/rcp")
    assert endpoint.target("catalog/list") == "/rcp/catalog/list"
    assert endpoint.target("x-é/a b?c#d\r\n%41") == "/rcp/x-%C3%A9/a%20b%3Fc%23d%0D%0A%2541"


@pytest.mark.parametrize("method", ["", ".", "..", "a/../b", "/a", "a/"])
def test_method_without_an_address(method: str) -> None:
    """A name that would lead out of the path is refused as an unknown method."""
    with pytest.raises(Refused) as caught:
        Endpoint.of("http://engine/rcp").target(method)
    assert caught.value.code == -32004


def test_secrets_of_the_url_are_never_shown() -> None:
    """Neither the representation nor an error shows path or query."""
    endpoint = Endpoint.of("http://engine/SECRET?key=SECRET")
    shown = f"{endpoint!r} {endpoint.label} {endpoint.unreachable(ConnectionRefusedError(111, 'SECRET'))!r}"
    assert "SECRET" not in shown
    assert "engine:80: Connection refused" in shown


def test_headers_are_our_own_and_the_entrys() -> None:
    """The entry's headers follow the three that RCP over HTTP needs."""
    entry = EngineEntry(id="docs", url="http://engine:8000/rcp", headers={"X-Key": "k"})
    assert request_headers(Endpoint.of("http://engine:8000/rcp"), entry) == [
        (b"Host", b"engine:8000"),
        (b"Content-Type", b"application/json"),
        (b"Accept", b"application/json"),
        (b"X-Key", b"k"),
    ]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError("All connection attempts failed"), "the connection was broken off"),
        (TimeoutError(), "the connection was broken off"),
        (ConnectionResetError(104, "x"), "Connection reset by peer"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"), "TLS: broken off"),
    ],
)
def test_words_for_a_failure(fault: OSError, words: str) -> None:
    """A failure is put in a few plain words behind host and port."""
    assert Endpoint.of("https://engine").unreachable(fault).message == f"engine:443: {words}"


def test_cause_within_a_chain() -> None:
    """What a library wrapped is found: the outermost words of a chain say least."""
    outer = OSError("All connection attempts failed")
    outer.__cause__ = ConnectionRefusedError(111, "Connect call failed")
    assert Endpoint.of("http://engine").unreachable(outer).message == "engine:80: Connection refused"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_what_this_process_lacks_is_no_fault_of_the_engine(number: int) -> None:
    """Out of file descriptors or ports: no breaker opens for it, and the text names the remedy."""
    endpoint = Endpoint.of("https://engine")
    for fault in (endpoint.unreachable(OSError(number, "x")), endpoint.distrusted(OSError(number, "x"))):
        assert (fault.kind, counts_as_failure(fault), marks_down(fault)) == ("overloaded", False, False)
        assert "ulimit -n" in fault.message
    assert counts_as_failure(endpoint.unreachable(ConnectionRefusedError(errno.ECONNREFUSED, "x")))


def test_context_verifies() -> None:
    """Without wishes the system's authorities are trusted, names are checked and certificates required."""
    context = tls_context(None)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_files_that_cannot_be_read() -> None:
    """A missing file is class tls and named by its key, not by its path."""
    with pytest.raises(TlsFailed, match=r"tls\.caFile: No such file"):
        tls_context(EngineTls(ca_file="/nowhere/ca.pem"))
    with pytest.raises(TlsFailed, match=r"tls\.certFile or tls\.keyFile: No such file"):
        tls_context(EngineTls(cert_file="/nowhere/cert.pem"))
