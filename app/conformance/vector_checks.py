"""Checks of the methods that compute numbers from text: embed, embed/sparse, embed/multi, rerank (RCP §7.3 to §7.6).

Each is called with two or three short texts; number, shape and values of the result are checked.
"""

import base64
import math
import struct
from collections.abc import Sequence
from typing import Any

from app.conformance.reply import Json, brief, is_integer, is_number
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

INVALID_PARAMS = -32602
OPTION_UNSUPPORTED = -32005
PAYLOAD_TOO_LARGE = -32013

TEXTS = ["a short text", "another one"]
PASSAGES = ["apples and pears", "how to test a server", "the weather of tomorrow"]
MOST_INPUTS = 2_000
"""A `batchLimit` over this is not tried out."""

suite = Suite()
_check = suite.check


@_check("embed.vectors", "L1", "7.3", "embed")
async def embed(subject: Subject) -> None:
    """One vector a text, of the advertised dimension, for queries and for documents."""
    for kind in ("query", "document"):
        vectors = await _vectors(subject, {"inputs": TEXTS, "kind": kind})
        if len(vectors) != len(TEXTS):
            raise Departure(f"{len(TEXTS)} texts gave {len(vectors)} vectors")
        for vector in vectors:
            _dimensioned(vector, subject.offer("embed").get("dimension"))


@_check("embed.normalized", "L1", "6", "embed")
async def normalized(subject: Subject) -> None:
    """Who advertises `normalized` gives vectors of length 1."""
    if subject.offer("embed").get("normalized") is not True:
        raise Skipped("embed.normalized is not advertised")
    for vector in await _vectors(subject, {"inputs": TEXTS}):
        length = math.sqrt(sum(value * value for value in vector))
        if abs(length - 1) > 0.01:
            raise Departure(f"normalized is advertised, and a vector has the length {length:.4f}")


@_check("embed.legacy-texts", "L1", "7.3", "embed", rule="MUST, tolerated")
async def legacy_texts(subject: Subject) -> None:
    """`texts`, the older name of `inputs`, is understood."""
    if not await subject.accepts("embed", {"texts": TEXTS}):
        raise Tolerated("embed does not understand 'texts', the older name of 'inputs'")


@_check("embed.no-inputs", "L1", "7.3", "embed")
async def no_inputs(subject: Subject) -> None:
    """Without texts it is -32602."""
    await subject.refusal("embed", {}, INVALID_PARAMS)


@_check("embed.batch-limit", "L1", "7.3", "embed")
async def batch_limit(subject: Subject) -> None:
    """As many texts as `batchLimit` are taken."""
    most = subject.offer("embed").get("batchLimit")
    if not is_integer(most) or most > MOST_INPUTS:
        raise Skipped(f"embed.batchLimit is not advertised, or larger than {MOST_INPUTS}")
    found = len(await _vectors(subject, {"inputs": ["a"] * int(most)}))
    if found != most:
        raise Departure(f"batchLimit is {most}, and as many texts gave {found} vectors")


@_check("embed.encodings", "L1", "7.3", "embed")
async def encodings(subject: Subject) -> None:
    """Every advertised encoding is given and named in the result, f32-base64 little-endian; another one is -32005."""
    offered = subject.offered("embed", "encodings")
    if "f32-base64" not in offered:
        if await subject.accepts("embed", {"inputs": TEXTS, "encoding": "f32-base64"}):
            raise Tolerated("the encoding f32-base64 is not advertised, and was not refused")
        await subject.refusal("embed", {"inputs": TEXTS, "encoding": "f32-base64"}, OPTION_UNSUPPORTED)
        return
    plain = await _vectors(subject, {"inputs": TEXTS})
    result = await subject.result("embed", {"inputs": TEXTS, "encoding": "f32-base64"})
    if result.get("encoding") != "f32-base64":
        raise Departure(f"f32-base64 was asked for, and 'encoding' of the result is {brief(result.get('encoding'))}")
    packed = result.get("vectors")
    if not isinstance(packed, list) or len(packed) != len(TEXTS):
        raise Departure(f"{len(TEXTS)} texts gave {brief(packed)}")
    for vector, numbers in zip(packed, plain, strict=False):
        content = _decoded(vector)
        length = -1 if content is None else len(content)
        if content is None or not is_integer(result.get("dimension")) or length != 4 * result["dimension"]:
            raise Departure(f"a vector of dimension {brief(result.get('dimension'))} came as {length} bytes")
        _same_numbers(content, numbers)


def _decoded(vector: Any) -> bytes | None:
    try:
        return base64.b64decode(vector, validate=True) if isinstance(vector, str) else None
    except ValueError:
        return None


def _same_numbers(content: bytes, numbers: Any) -> None:
    """See that the bytes are those numbers as little-endian 32-bit floats. Raises Departure."""
    count = len(content) // 4
    little, big = struct.unpack(f"<{count}f", content), struct.unpack(f">{count}f", content)
    if not isinstance(numbers, list) or len(numbers) != count or not all(map(is_number, numbers)):
        return  # judged by embed.vectors
    if not _close(little, numbers):
        order = "they are big-endian, and must be little-endian" if _close(big, numbers) else "decoded, they are others"
        raise Departure(f"f32-base64 vectors are not those that come as numbers: {order}")


def _close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4) for one, other in zip(found, wanted, strict=True))


@_check("sparse.vectors", "L1", "7.4", "sparseEmbed")
async def sparse(subject: Subject) -> None:
    """One sparse vector a text: as many values as indices, and no index twice."""
    found = (await subject.result("embed/sparse", {"texts": TEXTS, "inputs": TEXTS})).get("sparse")
    if not isinstance(found, list) or len(found) != len(TEXTS):
        raise Departure(f"{len(TEXTS)} texts gave {brief(found)}")
    for vector in found:
        indices, values = (vector.get(key) if isinstance(vector, dict) else None for key in ("indices", "values"))
        if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
            raise Departure(f"a sparse vector has as many 'values' as 'indices': {brief(vector)}")
        if not all(is_integer(index) and index >= 0 for index in indices) or len(set(indices)) != len(indices):
            raise Departure(f"indices are integers from 0 on, and none comes twice: {brief(indices)}")
        if not all(map(is_number, values)):
            raise Departure(f"values are numbers: {brief(values)}")


@_check("multi.matrices", "L2", "7.5", "multiVector")
async def multi(subject: Subject) -> None:
    """One matrix a text, each row of the advertised dimension and of the result's `dimension`."""
    result = await subject.result("embed/multi", {"inputs": TEXTS, "texts": TEXTS})
    found, dimension = result.get("matrices"), result.get("dimension")
    if not is_integer(dimension):
        raise Departure(f"embed/multi gives 'dimension', an integer, and not {brief(dimension)}")
    if not isinstance(found, list) or len(found) != len(TEXTS):
        raise Departure(f"{len(TEXTS)} texts gave {brief(found)}")
    for matrix in found:
        if not isinstance(matrix, list) or not matrix:
            raise Departure(f"a matrix is a list of rows, and not {brief(matrix)}")
        for row in matrix:
            _dimensioned(row, subject.offer("multiVector").get("dimension"))
            if len(row) != dimension:
                raise Departure(f"'dimension' of the result is {dimension}, and a row has {len(row)} numbers")


@_check("rerank.scores", "L2", "7.6", "rerank")
async def rerank(subject: Subject) -> None:
    """Each passage gets one score, and `scores[i]` belongs to `passages[i]`: turned round, they turn round as well."""
    scores = await _scores(subject, PASSAGES)
    turned = await _scores(subject, PASSAGES[::-1])
    best, best_turned = scores.index(max(scores)), turned.index(max(turned))
    if len(set(scores)) == len(PASSAGES) and PASSAGES[best] != PASSAGES[::-1][best_turned]:
        raise Departure("scores do not belong to passages: with the passages turned round another one is the best")


@_check("rerank.order", "L2", "7.6", "rerank")
async def order(subject: Subject) -> None:
    """Where there is an `order`, it names each passage at most once, the best first."""
    result = await _reranked(subject, PASSAGES)
    found, scores = result.get("order"), result.get("scores")
    if found is None:
        raise Skipped("no order is given, as a server may choose")
    if not isinstance(found, list) or not all(is_integer(index) and 0 <= index < len(PASSAGES) for index in found):
        raise Departure(f"'order' is a list of places in 'passages', and not {brief(found)}")
    if len(set(found)) != len(found):
        raise Departure(f"'order' names a passage twice: {brief(found)}")
    if isinstance(scores, list) and len(scores) == len(PASSAGES):
        ranked = [scores[int(index)] for index in found]
        if ranked != sorted(ranked, reverse=True):
            raise Departure(f"'order' {brief(found)} does not follow 'scores' {brief(scores)}")


@_check("rerank.methods", "L2", "7.6", "rerank")
async def methods(subject: Subject) -> None:
    """Every method that is advertised is answered; another one is -32005."""
    offered = subject.offered("rerank", "methods")
    for method in offered:
        await _scores(subject, PASSAGES, method=method)
    other = next((name for name in ("cross-encoder", "colbert", "llm") if offered and name not in offered), None)
    if other is not None:
        params = {"query": "test", "passages": PASSAGES, "documents": PASSAGES, "method": other}
        await subject.refusal("rerank", params, OPTION_UNSUPPORTED)


@_check("rerank.no-passages", "L2", "7.6", "rerank")
async def no_passages(subject: Subject) -> None:
    """Without passages it is -32602."""
    await subject.refusal("rerank", {"query": "test"}, INVALID_PARAMS)


@_check("rerank.too-many", "L2", "7.6", "rerank", rule="SHOULD")
async def too_many(subject: Subject) -> None:
    """More passages than `maxCandidates` are refused, and not silently cut."""
    most = subject.offer("rerank").get("maxCandidates")
    if not is_integer(most) or most > MOST_INPUTS:
        raise Skipped(f"rerank.maxCandidates is not advertised, or larger than {MOST_INPUTS}")
    passages = ["a"] * (int(most) + 1)
    params = {"query": "test", "passages": passages, "documents": passages}
    if await subject.accepts("rerank", params):
        raise Tolerated(f"maxCandidates is {most}, and {most + 1} passages were taken")
    await subject.refusal("rerank", params, INVALID_PARAMS, PAYLOAD_TOO_LARGE)


async def _vectors(subject: Subject, params: Json) -> list[Any]:
    found = (await subject.result("embed", params)).get("vectors")
    if not isinstance(found, list):
        raise Departure(f"the result of embed has no list 'vectors', but {brief(found)}")
    return found


def _dimensioned(vector: Any, dimension: Any) -> None:
    if not isinstance(vector, list) or not all(map(is_number, vector)):
        raise Departure(f"a vector is a list of numbers, and not {brief(vector)}")
    if dimension is not None and len(vector) != dimension:
        raise Departure(f"the advertised dimension is {dimension}, and a vector has {len(vector)}")


async def _reranked(subject: Subject, passages: list[str], **more: Any) -> Json:
    return await subject.result("rerank", {"query": PASSAGES[1], "passages": passages, "documents": passages, **more})


async def _scores(subject: Subject, passages: list[str], **more: Any) -> list[float]:
    """One score a passage; read from `results`, too, as some servers answer."""
    result = await _reranked(subject, passages, **more)
    scores, results = result.get("scores"), result.get("results")
    if scores is None and isinstance(results, list):
        placed = {entry.get("index"): entry.get("score") for entry in results if isinstance(entry, dict)}
        scores = [placed.get(index) for index in range(len(passages))]
    if not isinstance(scores, list) or len(scores) != len(passages) or not all(map(is_number, scores)):
        raise Departure(f"{len(passages)} passages need as many scores that are numbers, and got {brief(scores)}")
    return scores
