"""HTTP client of the commands that talk to a running gateway, with messages for every kind of failed connection."""

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
"""Environment variable with the key. On a command line every user of the machine could read it."""

UrlOption = Annotated[str, typer.Option("--url", help=f"URL of the gateway. {KEY_VARIABLE} can hold a key for it.")]

CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="PEM",
        help="Trusted certificate authorities for https://. Default: SSL_CERT_FILE or those of the system.",
        show_default=False,
    ),
]

NO_GATEWAY = "no gateway is running at {url}; start one with: rcp-gateway serve (or: rcp-gateway demo)"

_WRONG_NAME = (62, 64)
"""OpenSSL's verify codes for a certificate of another host name or IP address."""

GRACE_SECONDS = 1.0
"""Waited beyond the deadline, so that the gateway itself can report that it has passed."""


def call(url: str, method: str, params: dict[str, Any], timeout: float, ca_file: Path | None = None) -> dict[str, Any]:
    """The `result` of one RCP call to the gateway at `url` within `timeout` seconds. Raises Failure."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = _exchange("POST", base_of(url), f"/rcp/{method}", timeout, ca_file, message)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Failure(error_text(error))
    result = answer.get("result")
    if not isinstance(result, dict):
        raise Failure(f"{url} does not answer like a gateway; check the address")
    return result


def engines(url: str, timeout: float, ca_file: Path | None = None) -> list[dict[str, Any]]:
    """The engines that the gateway at `url` reports (`GET /engines`) within `timeout` seconds. Raises Failure."""
    answer = _exchange("GET", base_of(url), "/engines", timeout, ca_file)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Failure(error_text(error))
    listed = answer.get("engines")
    if not isinstance(listed, list):
        raise Failure(f"{url} does not answer like a gateway; check the address")
    return [entry for entry in listed if isinstance(entry, dict)]


def base_of(url: str) -> str:
    """The base URL of the gateway: scheme added if it is missing, the path of the RCP endpoint removed."""
    url = f"127.0.0.1{url}" if url.startswith(":") else url
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/rcp")


def credential() -> dict[str, str]:
    """The Authorization header with the key of the environment, if there is one. Raises Failure."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        return {}
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", key):
        raise Failure(
            f"{KEY_VARIABLE} holds no valid key: keys and tokens contain only letters, digits and . _ ~ + / = -"
        )
    return {"Authorization": f"Bearer {key}"}


def trust(url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    """The TLS context for `url`: OpenSSL's defaults (SSL_CERT_FILE, SSL_CERT_DIR), or only `ca_file`. Raises
    Failure."""
    if not url.startswith("https://"):
        return False  # loading the authorities takes 20 ms
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
    """Why there was no response from `url`, and what to do, for every kind of failed connection.

    `seconds` is the timeout, `patience` the option or setting that sets it, `refused` the message if nothing listens.
    """
    import httpx2

    if isinstance(fault, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return f"'{url}' is not a URL; write it like {DEFAULT_URL}"
    where, within = _address_of(url), "" if seconds is None else f" within {seconds:g} seconds"
    causes = list(_causes(fault))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _distrusted(cause, url)
    if isinstance(fault, httpx2.ConnectTimeout):
        return f"no connection to {where}{within}; check the address, and firewalls in between"
    if isinstance(fault, TimeoutError | httpx2.TimeoutException):
        return f"no answer from {where}{within}; raise {patience}, or check what the server is waiting for"
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
        # trust_env: a proxy of the environment is not meant for the user's own gateway.
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
        words = reason.lower().replace("_", " ")
        return f"{where} refused the TLS connection ({words}); it may require a client certificate"
    return f"no TLS connection to {where}: {reason.lower().replace('_', ' ') or 'broken off'}"


def _broken_off(fault: Exception, causes: Sequence[BaseException], where: str) -> str:
    """The message for a connection that was closed early, or failed in a rare way."""
    import httpx2

    hint = "" if where.startswith("https://") else "; if it serves HTTPS, write https://"
    if isinstance(fault, httpx2.RemoteProtocolError):
        if "disconnected" in str(fault):
            return f"{where} closed the connection without a response; check its log{hint}"
        return f"the server at {where} does not speak HTTP; check the port{hint}"
    if any(isinstance(cause, ConnectionResetError | BrokenPipeError) for cause in causes):
        return f"{where} reset the connection; check its log{hint}"
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.errno:
            return f"no connection to {where}: {os.strerror(cause.errno)}; check the address and the network"
    return f"no answer from {where}: {one_line(fault) or type(fault).__name__}"


def _unresolved(fault: socket.gaierror, url: str) -> str:
    host = _host_of(url)
    if fault.errno == socket.EAI_AGAIN:
        return f"the name '{host}' cannot be resolved now ({fault.strerror}); check the network and the DNS server"
    return f"the name '{host}' does not exist; check the spelling"


def _causes(fault: BaseException | None) -> Iterator[BaseException]:
    """`fault` and its causes; for several addresses, the causes of each attempt."""
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
        raise Failure(f"{url} answers HTTP {response.status_code} without RCP; check the address")
    return answer


def error_text(error: dict[str, Any]) -> str:
    """A JSON-RPC error (RCP §12) as text: message, code and field in one line, then a line per note.

    Text of the gateway is escaped and bounded in length.
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
