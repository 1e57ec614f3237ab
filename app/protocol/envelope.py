"""JSON-RPC 2.0 messages as RCP §4 and §11 use them: bytes to requests, results and errors to bytes.

The only module that imports orjson.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import orjson

from app.protocol.errors import InvalidParams, InvalidRequest, ParseError, PayloadTooLarge, RcpError
from app.protocol.lenient_json import path_of_half, read_with_halves, repaired_answer, without_halves
from app.protocol.parse_cost import BOX, MAX_ANSWER_WEIGHT, MAX_REQUEST_WEIGHT, MEMBER, NAME, is_heavy, seems_light

MAX_EXACT_ID: Final = 2**63

CANCEL: Final = "notifications/cancel"

MAX_REQUEST_DEPTH = 100
"""Levels of nesting in what a caller sends."""

WEIGHING = f"{MEMBER} for each value, {BOX} for each object or array, {NAME} for each name"

MAX_READ_DEPTH = 1024
"""Levels of nesting that orjson reads."""

MAX_WRITTEN_DEPTH = 200
"""Levels of nesting that are written; orjson writes 254."""


_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
"""A string, or the beginning or end of an array or object."""


class UnusableParams(dict[str, Any]):
    """Stands in for params that cannot be used as they were sent: empty, and refused once the method has been gated.

    They are no object, nest too deep, or hold half of a surrogate pair, which is JSON but no text. RCP §12 checks
    params after gating, so an unknown method is -32004 whatever its params are. `check_params` refuses them.
    """

    __slots__ = ("fault", "field")

    def __init__(self, fault: str, field: str = "params") -> None:
        super().__init__()
        self.fault = fault
        self.field = field

    def __repr__(self) -> str:
        return f"<UnusableParams {self.field}: {self.fault}>"


@dataclass(frozen=True, slots=True)
class NumberId:
    """A request id that is a number which neither an int of 64 bits nor a float can hold: echoed digit for digit."""

    digits: str


_ID_TYPES: Final = frozenset({str, int, float, NumberId})

RequestId = str | int | float | NumberId | None


@dataclass(frozen=True, slots=True)
class Request:
    """One message to act on. `params` is always an object; `notification` messages are never answered."""

    method: str
    params: dict[str, Any]
    id: RequestId = None
    notification: bool = False


def loads(body: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON, strictly: no NaN, no Infinity, no BOM, UTF-8 only, at most 1024 levels deep.

    Of a key given twice the last value counts. Raises ParseError (-32700) with the position of the fault.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise ParseError(f"the body is not JSON: {fault}") from None


def loads_answer(body: bytes | bytearray) -> Any:
    """Parse what an engine sent. What `loads` refuses is repaired where that leaves something sound, with a note.

    Raises ParseError, and PayloadTooLarge for what would take too long to parse.
    """
    # Most need not be weighed, and of those that are long most are clearly light.
    long = len(body) > MAX_ANSWER_WEIGHT
    if long and not seems_light(body, MAX_ANSWER_WEIGHT) and is_heavy(body, MAX_ANSWER_WEIGHT):
        raise PayloadTooLarge(f"the answer weighs more than {MAX_ANSWER_WEIGHT}: {WEIGHING}")
    try:
        return loads(body)
    except ParseError as fault:
        try:
            return repaired_answer(body)
        except ValueError:
            raise fault from None


def read_body(body: bytes) -> Any:
    """What a caller sent, parsed: as `loads`, but bounded in depth, with one method per object, and with exact ids.

    Params that nest too deep, or hold half of a surrogate pair, become UnusableParams: in a batch the other members
    run. Parsers differ in which of two equal keys they keep, so a proxy in front of us may have let another method
    through.
    Raises ParseError (-32700), InvalidParams (-32602) for a list that nests too deep, and PayloadTooLarge (-32013) for
    a body that would take too long to parse.
    """
    if is_heavy(body, MAX_REQUEST_WEIGHT):
        raise PayloadTooLarge(f"a body may weigh at most {MAX_REQUEST_WEIGHT}: {WEIGHING}", field="body")
    may_be_deep = body.count(b"[") + body.count(b"{") > MAX_REQUEST_DEPTH
    try:
        message = loads(body)
    except ParseError as fault:
        # It may be JSON all the same: with halves of surrogate pairs, or deeper than orjson reads. What is too deep is
        # left out before it is read.
        if b"\\ud" in body.lower():
            body = _flattened(body, MAX_REQUEST_DEPTH) if may_be_deep else body
            message = _with_halves(body, fault)
        elif may_be_deep:
            body = _flattened(body, MAX_READ_DEPTH)
            message = loads(body)
        else:
            raise
    if may_be_deep and _deep_params_taken_out(message):
        body = _flattened(body, MAX_REQUEST_DEPTH)  # the parser of the standard library recurses
    if body.count(b'"method"') > 1 or b"\\u00" in body:  # a letter of the name may be written as \u00XX
        # Numbers are not looked at: the digits that `int` converts are limited.
        json.loads(body, object_pairs_hook=_refuse_two_methods, parse_int=len, parse_float=len)
    _restore_ids(message, body)
    return message


def _flattened(body: bytes, levels: int) -> bytes:
    """`body` with null in place of what nests too deep, if it nests more than `levels` deep; else as it is."""
    kept, open_, begin, deepest = [], bytearray(), 0, 0
    for token in _NESTING.finditer(body):
        mark = token[0]
        if mark in b"[{":
            open_ += b"]" if mark == b"[" else b"}"
            deepest = max(deepest, len(open_))
            if len(open_) == MAX_REQUEST_DEPTH + 3:  # a batch has a level of its own
                kept += [body[begin : token.start()], b"null"]
        elif mark in b"]}":
            if not open_.endswith(mark):
                return body
            if len(open_) == MAX_REQUEST_DEPTH + 3:
                begin = token.end()
            del open_[-1]
    return body if open_ or deepest <= levels else b"".join([*kept, body[begin:]])


def _deep_params_taken_out(message: Any) -> bool:
    """Put UnusableParams into each member that nests too deep, and say whether there was one.

    Raises InvalidParams for a member that could not hold them.
    """
    found = False
    for member in message if type(message) is list else (message,):
        if not _deeper(member, MAX_REQUEST_DEPTH):
            continue
        if type(member) is not dict:
            raise InvalidParams(f"the body nests more than {MAX_REQUEST_DEPTH} levels deep")
        member["params"] = UnusableParams(f"the message nests more than {MAX_REQUEST_DEPTH} levels deep")
        found = True
    return found


def _with_halves(body: bytes, fault: ParseError) -> Any:
    """The message of a body that is JSON but for halves of surrogate pairs. Raises `fault` for any other."""
    try:
        message = read_with_halves(body)
        return [_without_halves(member) for member in message] if type(message) is list else _without_halves(message)
    except (ValueError, RecursionError):
        raise fault from None


def _without_halves(member: Any) -> Any:
    if type(member) is not dict:
        return without_halves(member)
    clean: dict[str, Any] = {"id": None} if "id" in member else {}  # an id that holds one is no id
    clean.update(without_halves({name: value for name, value in member.items() if name != "params"}))
    if "params" in member:
        clean["params"] = member["params"]
        field = path_of_half(member["params"])
        if field is not None:
            field = field or "params"
            clean["params"] = UnusableParams(f"'{field}' holds half of a surrogate pair, which is no text", field)
    return clean


def _restore_ids(message: Any, body: bytes) -> None:
    """Put the digits that were sent in the place of ids that the parser has rounded."""
    members = message if type(message) is list else (message,)
    if not any(map(_has_rough_id, members)):
        return
    exact = json.loads(body, parse_int=NumberId, parse_float=NumberId)
    for member, same in zip(members, exact if type(exact) is list else [exact], strict=True):
        _restore_id(member, same)
        if _is_cancel(member):
            _restore_id(member["params"], same["params"])


def _has_rough_id(member: Any) -> bool:
    """Whether the parser may have lost digits of a request's id, or of the one that it cancels."""
    if type(member) is not dict:
        return False
    return type(member.get("id")) is float or (_is_cancel(member) and type(member["params"].get("id")) is float)


def _is_cancel(member: Any) -> bool:
    return type(member) is dict and member.get("method") == CANCEL and type(member.get("params")) is dict


def _restore_id(member: Any, exact: Any) -> None:
    if type(member) is dict and type(member.get("id")) is float:
        sent: NumberId = exact["id"]
        if abs(member["id"]) >= MAX_EXACT_ID or sent.digits.encode() != orjson.dumps(member["id"]):
            member["id"] = sent


def _deeper(value: Any, levels: int) -> bool:
    """Whether objects and arrays nest more than `levels` deep in `value`."""
    level = [value] if _nests(value) else []
    for _ in range(levels):
        members = [member for box in level for member in (box.values() if type(box) is dict else box)]
        level = [member for member in members if _nests(member)]
    return bool(level)


def _refuse_two_methods(pairs: list[tuple[str, Any]]) -> None:
    if sum(key == "method" for key, _ in pairs) > 1:
        raise ParseError("the body gives 'method' twice in one object")


def dumps(value: Any) -> bytes:
    """Compact JSON bytes. Raises TypeError for what JSON cannot say."""
    return orjson.dumps(value)


def canonical(value: Any) -> bytes:
    """The same bytes for the same JSON, in whatever order the keys of its objects came."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def read_request(message: Any) -> Request:
    """One member of the wire made a Request (RCP §4.1, §4.5, §5.2).

    Without `jsonrpc` and `id` it is the compact envelope: answered, with `id: null`. Params that are no object are left
    to `check_params`.
    Raises InvalidRequest (-32600).
    """
    if type(message) is not dict:
        raise InvalidRequest("a request is a JSON object")
    method = message.get("method")
    if type(method) is not str or not method:
        raise InvalidRequest("'method' must be a non-empty string", field="method")
    version = message.get("jsonrpc")
    if version is None:
        if "jsonrpc" in message or "id" in message:
            raise InvalidRequest("'jsonrpc' must be \"2.0\"", field="jsonrpc")
    elif version != "2.0":
        raise InvalidRequest("'jsonrpc' must be \"2.0\"", field="jsonrpc")
    params = message.get("params")
    if params is None:
        params = {}
    elif not isinstance(params, dict):
        params = UnusableParams("'params' must be an object")
    if "id" in message:
        return Request(method, params, _checked_id(message["id"]))
    return Request(method, params, None, version is not None)


def check_params(params: Mapping[str, Any] | None) -> None:
    """Raises InvalidParams (-32602) for params that could not be used as they were sent; call it after gating."""
    if type(params) is UnusableParams:
        raise InvalidParams(params.fault, field=params.field)


def recover_id(message: Any) -> RequestId:
    """The id that an error about a malformed request may still echo; None if there is none to trust."""
    candidate = message.get("id") if type(message) is dict else None
    try:
        return _checked_id(candidate)
    except InvalidRequest:
        return None


def is_integer_id(candidate: Any) -> bool:
    """Whether an id is an integer, however long."""
    return type(candidate) is int or (type(candidate) is NumberId and candidate.digits.lstrip("-").isdigit())


def _checked_id(candidate: Any) -> str | int | float | NumberId:
    if type(candidate) in _ID_TYPES and (type(candidate) is not float or abs(candidate) < MAX_EXACT_ID):
        return candidate  # type: ignore[no-any-return]
    raise InvalidRequest("'id' must be a string or a number that survives a round trip", field="id")


def written_id(request_id: RequestId) -> Any:
    """The id as `dumps` writes it."""
    return orjson.Fragment(request_id.digits) if type(request_id) is NumberId else request_id


def success(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """The response bytes for a result (RCP §4.2).

    What an engine nested deeper than can be written again (it can be read) is cut off there, not the whole answer.
    """
    response = {"jsonrpc": "2.0", "id": written_id(request_id), "result": result}
    try:
        return orjson.dumps(response)
    except TypeError:
        return orjson.dumps(_pruned(response, MAX_WRITTEN_DEPTH))


def writable(value: Any) -> Any:
    """`value`, without what is nested too deep to be written inside of something else."""
    return _pruned(value, MAX_WRITTEN_DEPTH - 20) if _deeper(value, MAX_WRITTEN_DEPTH - 20) else value


def _pruned(value: Any, levels: int) -> Any:
    """`value` without the objects and arrays that are more than `levels` deep; raises nothing, changes nothing else."""
    if type(value) is dict:
        return {key: _pruned(member, levels - 1) for key, member in value.items() if levels > 1 or not _nests(member)}
    if type(value) is list:
        return [_pruned(member, levels - 1) for member in value if levels > 1 or not _nests(member)]
    return value


def _nests(value: Any) -> bool:
    return type(value) is dict or type(value) is list


def failure(request_id: RequestId, error: RcpError) -> bytes:
    """The response bytes for an error (RCP §4.3)."""
    return orjson.dumps({"jsonrpc": "2.0", "id": written_id(request_id), "error": error.body()})


class SharedParams(dict[str, Any]):
    """Params that several engines are sent: what follows the id of a request is written once. Not to be changed then.

    A dict like any other to whoever reads it.
    """

    __slots__ = ("_method", "_tail")

    _method: str
    _tail: bytes

    def tail(self, method: str) -> bytes:
        """The request after its id."""
        try:
            if self._method == method:
                return self._tail
        except AttributeError:  # not written yet
            pass
        tail: bytes = orjson.dumps({"method": method, "params": self})[1:]
        self._method, self._tail = method, tail
        return tail

    def __repr__(self) -> str:
        return f"SharedParams({super().__repr__()})"


@final
class _Written:
    """What was written last of shared params: one request asks all its engines in one go."""

    __slots__ = ("method", "params", "tail")

    def __init__(self) -> None:
        self.params: SharedParams | None = None
        self.method = ""
        self.tail = b""

    def __repr__(self) -> str:
        return f"<_Written {self.method}, {len(self.tail)} bytes>"


_LAST: Final = _Written()


def encode_call(call_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request of ours to an engine."""
    if type(params) is SharedParams:
        last = _LAST
        if last.params is not params or last.method != method:
            last.params, last.method, last.tail = params, method, params.tail(method)
        return b'{"jsonrpc":"2.0","id":%d,%b' % (call_id, last.tail)
    return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params})


def encode_notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification of ours: no `id`, never answered."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params})
