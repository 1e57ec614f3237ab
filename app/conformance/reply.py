"""The response to one message, over either transport, parsed strictly (RCP §4, §12)."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from app.conformance.verdict import Departure

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The answer to one message."""

    body: bytes
    """As it came; empty if nothing did."""
    status: int | None = None
    """HTTP's; None over stdio."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    notifications: tuple[Json, ...] = ()
    """What came before the response: progress, log."""
    frames: int | None = None
    """Responses in an event stream; None where the answer was no stream."""

    def value(self) -> Any:
        """The parsed body. Raises Departure if it is no JSON."""
        try:
            return parsed(self.body)
        except Departure as departure:
            if self.status in (None, 200):
                raise
            raise Departure(f"{departure} (HTTP {self.status})") from None

    def response(self) -> Json:
        """The one response in it, well formed. Raises Departure."""
        response = self.value()
        if not isinstance(response, dict):
            raise Departure(f"the answer is no response object but {brief(response)}")
        if response.get("jsonrpc") != "2.0":
            raise Departure(f'the response says jsonrpc {brief(response.get("jsonrpc"))} instead of "2.0"')
        if ("result" in response) == ("error" in response):
            raise Departure("a response carries either 'result' or 'error'; this one has both or neither")
        if "id" not in response:
            raise Departure("the response has no 'id'")
        return response

    def result(self, what: str) -> Json:
        """The result object of a request that must succeed; `what` names it. Raises Departure."""
        response = self.response()
        if "error" in response:
            raise Departure(f"{what} was refused: {told(response['error'])}")
        if not isinstance(response["result"], dict):
            raise Departure(f"the result of {what} is no object but {brief(response['result'])}")
        result: Json = response["result"]
        return result

    def error(self, what: str) -> Json:
        """The error object of a request that must fail, well formed. Raises Departure."""
        response = self.response()
        if "error" not in response:
            raise Departure(f"{what} was answered with a result and should have been refused")
        error = response["error"]
        if not isinstance(error, dict) or type(error.get("code")) is not int or type(error.get("message")) is not str:
            raise Departure(f"an error needs an integer 'code' and a string 'message': {brief(error)}")
        return error


def parsed(text: bytes) -> Any:
    """`text` as JSON without NaN and Infinity. Raises Departure."""
    if not text.strip():
        raise Departure("there is no answer where there should be one")
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise Departure("the answer is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Departure(f"the answer is no JSON: {brief(text[:80].decode('utf-8', 'replace'))}") from None


def _refuse(constant: str) -> NoReturn:
    raise Departure(f"the answer contains {constant}, which is no JSON")


def told(error: Any) -> str:
    """An error object in one line."""
    if not isinstance(error, dict):
        return brief(error)
    data = error.get("data")
    more = f" {brief(data)}" if data else ""
    return f"{error.get('code')} {brief(error.get('message'))}{more}"


def brief(value: Any, most: int = 120) -> str:
    """A foreign value as JSON, in one line of at most `most` characters."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else text[: most - 3] + "..."


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; a boolean is none."""
    return (type(value) is int or type(value) is float) and math.isfinite(value)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether it is an integer on the wire: without a fraction, however it is written."""
    return type(value) is int or (type(value) is float and value.is_integer())


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal in type and value; 1 and "1" and true are three things."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
