"""Params and results of `embed`, `embed/sparse` and `embed/multi` (RCP §7.3 to §7.5).

A batch may be split and its results joined, since every input has its own vector.
"""

from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.protocol.content import read_contents
from app.protocol.errors import ProtocolViolation
from app.protocol.param_fields import forwardable, read_choice, read_text, refuse
from app.protocol.validators import numbers, reshaped, whole

PLAIN_ENCODING: Final = "json"
BINARY_ENCODING: Final = "f32-base64"
BYTES_PER_NUMBER: Final = 4

VECTORS: Final = MappingProxyType({"embed": "vectors", "embed/sparse": "sparse", "embed/multi": "matrices"})
"""Method -> the field of its result that has one entry for each input."""

Result = Mapping[str, Any]


class Embedding(NamedTuple):
    """One well-formed call."""

    inputs: Sequence[Any]
    name: str
    """What the caller calls them."""
    modalities: frozenset[str]
    encoding: str | None
    """None, or `json`: as arrays of numbers, which everybody can."""
    rest: dict[str, Any]
    """The other params as they were sent."""


def read_embedding(params: Mapping[str, Any]) -> Embedding:
    """Check the params; the inputs may be called `inputs` or `texts`. Raises InvalidParams (-32602)."""
    inputs: Any = params.get("inputs")
    texts: Any = params.get("texts")
    if inputs is None and texts is None:
        refuse("inputs", "'inputs' is required: an array of strings and content blocks")
    if inputs is not None and texts is not None and inputs != texts:
        refuse("texts", "'texts' is another name of 'inputs'; give one of them, or the same twice")
    name = "texts" if inputs is None else "inputs"
    given = texts if inputs is None else inputs
    modalities = read_contents(given, name)
    read_choice(params, "kind", ("query", "document"))
    encoding = read_text(params, "encoding")
    return Embedding(
        given,
        name,
        modalities,
        None if encoding == PLAIN_ENCODING else encoding,
        forwardable(params, "inputs", "texts"),
    )


def split(inputs: Sequence[Any], limit: int | None) -> list[Sequence[Any]]:
    """The inputs in order, in parts of at most `limit`; at least one part."""
    if limit is None or len(inputs) <= limit:
        return [inputs]
    return [inputs[start : start + limit] for start in range(0, len(inputs), limit)]


def checked(
    result: dict[str, Any], method: str, count: int, dimension: int | None, encoding: str | None = None
) -> dict[str, Any]:
    """`result` if it has a vector for each of `count` inputs, with its `dimension` written out if they are binary.

    `dimension` is the advertised one, `encoding` the binary one that was asked for. Raises ProtocolViolation for any
    other, such as a binary vector of wrong length, or one where numbers were asked for.
    """
    key = VECTORS[method]
    vectors = result.get(key)
    if type(vectors) is not list or len(vectors) != count:
        raise ProtocolViolation(f"the result has no '{key}' with one entry for each of the {count} inputs")
    if method == "embed" and result.get("encoding") not in (None, PLAIN_ENCODING):
        if result["encoding"] != encoding:
            raise ProtocolViolation("the vectors came in an encoding that nobody asked for")
        if not all(type(vector) is str for vector in vectors):
            raise ProtocolViolation("the result names a binary encoding and has vectors that are no strings")
        return _binary(result, vectors, dimension) if result["encoding"] == BINARY_ENCODING else result
    amiss = next((index for index, vector in enumerate(vectors) if not _IS_VECTOR[method](vector)), None)
    if amiss is not None:
        raise ProtocolViolation(f"'{key}' has an entry that is no {_CALLED[method]}: the one of input {amiss}")
    return reshaped(result, _STATED)


def _is_sparse(vector: Any) -> bool:
    """Whether these are indices, and a number for each of them."""
    if type(vector) is not dict:
        return False
    indices, values = numbers(vector.get("indices")), numbers(vector.get("values"))
    return (
        indices is not None and values is not None and len(indices) == len(values) and float not in map(type, indices)
    )


def _is_matrix(matrix: Any) -> bool:
    return type(matrix) is list and all(numbers(row) is not None for row in matrix)


_IS_VECTOR: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {"embed": lambda vector: numbers(vector) is not None, "embed/sparse": _is_sparse, "embed/multi": _is_matrix}
)
_CALLED: Final = MappingProxyType(
    {
        "embed": "array of numbers",
        "embed/sparse": "object with as many 'indices' (integers) as 'values' (numbers)",
        "embed/multi": "array of arrays of numbers",
    }
)
_STATED: Final = MappingProxyType({"dimension": whole(1)})


def joined(parts: Sequence[dict[str, Any]], method: str) -> dict[str, Any]:
    """The results of the parts of one batch as one. Raises ProtocolViolation if they are of different kinds."""
    first = parts[0]
    for name in ("encoding", "dimension"):
        if any(part.get(name) != first.get(name) for part in parts):
            raise ProtocolViolation(f"the parts of one batch came back with different '{name}'")
    key = VECTORS[method]
    return {**first, key: [vector for part in parts for vector in part[key]]}


def _binary(result: dict[str, Any], vectors: Sequence[str], advertised: int | None) -> dict[str, Any]:
    """Raises ProtocolViolation unless every vector is base64 of `dimension` numbers (RCP §7.3.1)."""
    dimension = result.get("dimension")
    if dimension is None:
        dimension = advertised
    if type(dimension) is not int or dimension < 1:
        raise ProtocolViolation("binary vectors came without their 'dimension'")
    if advertised is not None and dimension != advertised:
        raise ProtocolViolation(f"vectors of dimension {dimension}, though {advertised} is advertised")
    for index, vector in enumerate(vectors):
        size = _decoded_size(vector)
        if size != dimension * BYTES_PER_NUMBER:
            found = "is no base64" if size is None else f"has {size} bytes"
            raise ProtocolViolation(f"binary vector {index} {found}, not {dimension * BYTES_PER_NUMBER} bytes")
    return {**result, "dimension": dimension}


def _decoded_size(vector: str) -> int | None:
    try:
        return len(a2b_base64(vector, strict_mode=True))
    except (NotBase64, ValueError):  # ValueError: characters outside ASCII
        return None
