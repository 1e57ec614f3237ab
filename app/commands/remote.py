"""A running gateway as the command line reaches it: one question, one answer, over HTTP.

It decides with which key the gateway is asked, and how what can go wrong on the way is told. It refuses to know how
answers are shown.
"""

import json
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.failure import Failure
from app.commands.terminal import one_line
from app.protocol.errors import Unauthorized

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8080"

KEY_VARIABLE = "RCP_GATEWAY_KEY"
"""Where the key stands: on a command line everybody on the machine could read it."""

UrlOption = Annotated[str, typer.Option("--url", help=f"The gateway's address; {KEY_VARIABLE} holds a key for it.")]

GRACE_SECONDS = 1.0
"""Waited beyond the deadline, so that the gateway itself can say that time ran out."""


def call(url: str, method: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The `result` of one RCP call to the gateway at `url` within `timeout` seconds. Raises Failure."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = _exchange("POST", base_of(url), f"/rcp/{method}", timeout, message)
    error = answer.get("error")
    if isinstance(error, dict):
        raise Failure(error_text(error))
    result = answer.get("result")
    if not isinstance(result, dict):
        raise Failure(f"{url} answers, but not as a gateway does; is that its address?")
    return result


def engines(url: str, timeout: float) -> list[dict[str, Any]]:
    """What the gateway at `url` says of its engines (`GET /engines`) within `timeout` seconds. Raises Failure."""
    answer = _exchange("GET", base_of(url), "/engines", timeout)
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


def _exchange(verb: str, url: str, path: str, timeout: float, message: dict[str, Any] | None = None) -> dict[str, Any]:
    import httpx2

    headers = credential()
    try:
        # trust_env: a proxy of the environment has no business between a person and their gateway.
        with httpx2.Client(trust_env=False, timeout=timeout + GRACE_SECONDS) as client:
            response = client.request(verb, url + path, json=message, headers=headers)
    except httpx2.ConnectError:
        raise Failure(
            f"no gateway is running at {url}; start one with: rcp-gateway serve (or: rcp-gateway demo)"
        ) from None
    except httpx2.TimeoutException:
        raise Failure(f"no answer from {url} within {timeout:g} seconds") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise Failure(f"'{url}' is not an address; write it like {DEFAULT_URL}") from None
    except httpx2.HTTPError as fault:
        raise Failure(f"no answer from {url}: {one_line(fault) or type(fault).__name__}") from None
    return read_response(response, url)


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
