"""A running gateway as the command line reaches it: one request, one answer, over HTTP.

It decides which key is sent, which certificates are trusted, and how a failed connection is explained. How answers are
shown is decided elsewhere.
"""

import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from app.cli.failures import Failure
from app.cli.terminal import one_line
from app.protocol.errors import Unauthorized

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8080"

KEY_VARIABLE = "RCP_GATEWAY_KEY"
"""Where the key stands: on a command line everybody on the machine could read it."""

UrlOption = Annotated[str, typer.Option("--url", help=f"The gateway's address; {KEY_VARIABLE} holds a key for it.")]

CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="PEM",
        help="Certificate authorities to trust for https://, instead of the system's (or those in SSL_CERT_FILE).",
        show_default=False,
    ),
]

NO_GATEWAY = "no gateway is running at {url}; start one with: rcp-gateway serve (or: rcp-gateway demo)"

_WRONG_NAME = (62, 64)
"""OpenSSL's verify codes for a host name and an IP address that the certificate is not made out to."""

GRACE_SECONDS = 1.0
"""Waited beyond the deadline, so that the gateway itself can say that time ran out."""


def call(url: str, method: str, params: dict[str, Any], timeout: float, ca_file: Path | None = None) -> dict[str, Any]:
    """The `result` of one RCP call to the gateway at `url` within `timeout` seconds. Raises Failure."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = _exchange("POST", base_of(url), f"/rcp/{method}", timeout, ca_file, message)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Failure(error_text(error))
    result = answer.get("result")
    if not isinstance(result, dict):
        raise Failure(f"{url} answers, but not as a gateway does; is that its address?")
    return result


def engines(url: str, timeout: float, ca_file: Path | None = None) -> list[dict[str, Any]]:
    """What the gateway at `url` says of its engines (`GET /engines`) within `timeout` seconds. Raises Failure."""
    answer = _exchange("GET", base_of(url), "/engines", timeout, ca_file)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Failure(error_text(error))
    listed = answer.get("engines")
    if not isinstance(listed, list):
        raise Failure(f"{url} answers, but not as a gateway does; is that its address?")
    return [entry for entry in listed if isinstance(entry, dict)]


def base_of(url: str) -> str:
    """The gateway's address without the path of its RCP door, which is what people have at hand."""
    url = f"127.0.0.1{url}" if url.startswith(":") else url
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/rcp")


def credential() -> dict[str, str]:
    """The header that lets the caller in: the key in the environment, where there is one. Raises Failure."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        return {}
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", key):
        raise Failure(f"{KEY_VARIABLE} holds no key: keys and tokens are letters, digits and . _ ~ + / = - alone")
    return {"Authorization": f"Bearer {key}"}


def trust(url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    """What verifies the certificate of `url`: OpenSSL's defaults, which follow SSL_CERT_FILE and SSL_CERT_DIR, or
    `ca_file` alone. Loading authorities takes 20 ms, so plain HTTP goes without. Raises Failure."""
    if not url.startswith("https://"):
        return False
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as fault:
        reason = "no PEM certificates" if isinstance(fault, ssl.SSLError) else fault.strerror or fault
        raise Failure(f"--ca-file: '{ca_file}' cannot be used: {reason}") from None


def unreachable(
    fault: Exception,
    url: str,
    seconds: float | None = None,
    refused: str = NO_GATEWAY,
    patience: str = "--timeout",
) -> str:
    """Why `url` gave no answer, and what to do: every kind of failed connection is told apart.

    `seconds`: how long it was waited for; `refused`: what to say where nothing listens;
    `patience`: what sets how long is waited.
    """
    import httpx2

    if isinstance(fault, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return f"'{url}' is not an address; write it like {DEFAULT_URL}"
    where, within = _address_of(url), "" if seconds is None else f" within {seconds:g} seconds"
    causes = list(_causes(fault))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _distrusted(cause, url)
    if isinstance(fault, httpx2.ConnectTimeout):
        return f"no connection to {where}{within}; check the address, and firewalls in between"
    if isinstance(fault, TimeoutError | httpx2.TimeoutException):
        return f"no answer from {where}{within}; raise {patience}, or see what the server is waiting for"
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _no_tls(cause, url)
        if isinstance(cause, socket.gaierror):
            return _unresolved(cause, url)
        if isinstance(cause, ConnectionRefusedError):
            return refused.format(url=where)
    return _broken_off(fault, causes, where)


def _exchange(
    verb: str, url: str, path: str, timeout: float, ca_file: Path | None, message: dict[str, Any] | None = None
) -> dict[str, Any]:
    import httpx2

    headers, verify = credential(), trust(url, ca_file)
    try:
        # trust_env: a proxy of the environment has no business between a person and their gateway.
        with httpx2.Client(trust_env=False, timeout=timeout + GRACE_SECONDS, verify=verify) as client:
            response = client.request(verb, url + path, json=message, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
        raise Failure(unreachable(fault, url, timeout)) from None
    return read_response(response, url)


def _address_of(url: str) -> str:
    """`scheme://host:port` of `url`, without path and credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or url


def _distrusted(fault: ssl.SSLCertVerificationError, url: str) -> str:
    where = _address_of(url)
    if fault.verify_code in _WRONG_NAME:
        return (
            f"the TLS certificate of {where} is for another name than '{_host_of(url)}'; "
            "use the name that is in the certificate"
        )
    remedy = "name its authority with --ca-file or SSL_CERT_FILE"
    named = os.environ.get("SSL_CERT_FILE")
    if named and not Path(named).is_file():
        remedy = f"SSL_CERT_FILE names '{named}', which is not a file"
    elif "expired" in fault.verify_message or "not yet valid" in fault.verify_message:
        remedy = "renew it, or set the clock of this machine"
    return f"the TLS certificate of {where} is not trusted ({fault.verify_message}); {remedy}"


def _no_tls(fault: ssl.SSLError, url: str) -> str:
    where, reason = _address_of(url), fault.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return f"{where} does not speak TLS; if it serves plain HTTP, write http://"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            f"{where} refused the TLS connection ({reason.lower().replace('_', ' ')}); it may want a client certificate"
        )
    return f"no TLS connection to {where}: {reason.lower().replace('_', ' ') or 'broken off'}"


def _broken_off(fault: Exception, causes: Sequence[BaseException], where: str) -> str:
    """Why a connection that came about, or failed in a rarer way, brought no answer."""
    import httpx2

    hint = "" if where.startswith("https://") else "; if it serves HTTPS, write https://"
    if isinstance(fault, httpx2.RemoteProtocolError):
        if "disconnected" in str(fault):
            return f"{where} closed the connection without an answer; look into its log{hint}"
        return f"what answers at {where} does not speak HTTP; check the port{hint}"
    if any(isinstance(cause, ConnectionResetError | BrokenPipeError) for cause in causes):
        return f"{where} reset the connection; look into its log{hint}"
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.errno:
            return f"no connection to {where}: {os.strerror(cause.errno)}; check the address and the network"
    return f"no answer from {where}: {one_line(fault) or type(fault).__name__}"


def _unresolved(fault: socket.gaierror, url: str) -> str:
    host = _host_of(url)
    if fault.errno == socket.EAI_AGAIN:
        return f"the name '{host}' cannot be looked up now ({fault.strerror}); check the network and its name server"
    return f"the name '{host}' is not known; check its spelling"


def _causes(fault: BaseException | None) -> Iterator[BaseException]:
    """`fault` and everything that led to it; where several addresses were tried, what became of each."""
    while fault is not None:
        yield fault
        if isinstance(fault, BaseExceptionGroup):
            for one in fault.exceptions:
                yield from _causes(one)
        fault = fault.__cause__ or fault.__context__


def read_response(response: "httpx2.Response", url: str) -> dict[str, Any]:
    """The JSON object in the body. An error status with a JSON-RPC error in it is read as that error."""
    try:
        answer = json.loads(response.content)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or (response.status_code >= 400 and "error" not in answer):
        raise Failure(f"{url} answers HTTP {response.status_code} and nothing of RCP; is that the gateway's address?")
    return answer


def error_text(error: dict[str, Any]) -> str:
    """A JSON-RPC error (RCP §12) for people: its message, code and culprit in one line, each of its notes in one more.

    Whatever the gateway sent comes out harmless and of bounded length.
    """
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    details = [f"code {one_line(error.get('code', '?'), 20)}"]
    details += [f"{name} {one_line(data[name], 100)}" for name in ("field", "option") if name in data]
    notes = data.get("notes", data.get("detail"))
    lines = [f"{one_line(error.get('message', 'refused'))} ({', '.join(details)})"]
    lines += [f"  {one_line(note)}" for note in (notes if isinstance(notes, list) else [notes]) if note]
    if error.get("code") == Unauthorized.code and not os.environ.get(KEY_VARIABLE):
        lines.append(f"  set {KEY_VARIABLE} to a key of a tenant")
    return "\n".join(lines)
