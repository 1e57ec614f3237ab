"""Checks of the hits of `retrieve`: form, number and order (RCP §7.7).

They need a query that has hits; `--query` sets one.
"""

from itertools import pairwise

from app.conformance.reply import Json, brief, is_integer, is_number, same, told
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

UNITS = (
    ("chunk", "passage", "document", "node", "triplet", "path", "subgraph", "community", "tree-node", "page")
)  # fmt: skip
MODALITIES = ("text", "image", "audio", "code", "multimodal")
INVALID_PARAMS = -32602
OPTION_UNSUPPORTED = -32005
TRUST = ("trusted", "community", "untrusted")

suite = Suite()
_check = suite.check


@_check("retrieve.shape", "L0", "7.7", "retrieve")
async def shape(subject: Subject) -> None:
    """The result has a list of hits, each with an id and a score; what else it has is of the right type."""
    result = await subject.retrieve(k=10)
    for key, kind in (("nextCursor", str), ("usage", dict), ("rewrittenQuery", str)):
        if result.get(key) is not None and not isinstance(result[key], kind):
            raise Departure(f"'{key}' of the result must be of type {kind.__name__}, and is {brief(result[key])}")
    for hit in result["hits"]:
        _typed(hit)


@_check("retrieve.unique", "L0", "7.7", "retrieve")
async def unique(subject: Subject) -> None:
    """No hit comes twice in one answer."""
    ids = [brief(hit["id"]) for hit in await subject.hits()]
    twice = sorted({found for found in ids if ids.count(found) > 1})
    if twice:
        raise Departure(f"these ids come more than once: {', '.join(twice)}")


@_check("retrieve.scores", "L1", "7.7", "retrieve")
async def scores(subject: Subject) -> None:
    """Scores descend."""
    found = [hit["score"] for hit in await subject.hits(2)]
    for rank, (higher, lower) in enumerate(pairwise(found), 1):
        if lower > higher:
            raise Departure(f"the score at rank {rank + 1} ({lower}) is above the one before it ({higher})")


@_check("retrieve.k", "L1", "7.7", "retrieve")
async def k(subject: Subject) -> None:
    """Never more than `k` hits come; `k` should come where there are as many."""
    known = len(await subject.hits())
    for wanted in {1, 2, min(5, known)}:
        found = len((await subject.retrieve(k=wanted))["hits"])
        if found > wanted:
            raise Departure(f"k {wanted} was asked for, and {found} hits came")
        if found < min(wanted, known):
            raise Tolerated(f"k {wanted} was asked for and {found} hits came, though there are at least {known}")


@_check("retrieve.k-default", "L1", "7.7", "retrieve")
async def k_default(subject: Subject) -> None:
    """Without `k`, at most 10 hits come."""
    found = len((await subject.retrieve())["hits"])
    if found > 10:
        raise Departure(f"without k, {found} hits came")


@_check("retrieve.k-clamped", "L1", "7.7", "retrieve")
async def k_clamped(subject: Subject) -> None:
    """A `k` over `maxK` is brought down to it, and not refused."""
    most = subject.offer("retrieve").get("maxK")
    if not is_integer(most):
        raise Skipped("retrieve.maxK is not advertised")
    found = len((await subject.retrieve(k=int(most) + 1))["hits"])
    if found > most:
        raise Departure(f"maxK is {most}, and {found} hits came")


@_check("retrieve.min-score", "L1", "7.7", "retrieve", rule="SHOULD")
async def min_score(subject: Subject) -> None:
    """No hit below `minScore` comes, and none above it is left out."""
    known = await subject.hits(2)
    least = known[len(known) // 2]["score"]
    found = (await subject.retrieve(k=10, minScore=least))["hits"]
    low = [hit["score"] for hit in found if hit["score"] < least]
    if low:
        raise Departure(f"minScore was {least}, and a hit with the score {low[0]} came")
    wanted = sum(hit["score"] > least for hit in known)
    if len(found) < wanted:
        raise Departure(f"minScore was {least}; {wanted} hits are above it, and {len(found)} came")


@_check("retrieve.query-content", "L1", "4.8", "retrieve")
async def query_content(subject: Subject) -> None:
    """A text block, or a list of one, is the same query as its string; a text-only server may refuse the block."""
    expected = await subject.settled(5)
    text_only = set(subject.offered("retrieve", "modalities")) <= {"text"}
    departure = Tolerated if text_only else Departure
    block = {"type": "text", "text": subject.wishes.query}
    for query in (block, [block]):
        response = (await subject.ask("retrieve", {"query": query, "k": 5})).response()
        if "error" in response:
            if not text_only:
                raise Departure(
                    f"modalities beside text are advertised, and a text block is refused: {brief(response)}"
                )
            if response["error"].get("code") not in (INVALID_PARAMS, OPTION_UNSUPPORTED):
                raise Tolerated(
                    f"a text block should be refused with {INVALID_PARAMS}, not with {told(response['error'])}"
                )
            continue
        found = [hit.get("id") for hit in response["result"].get("hits", [])]
        if found != expected:
            raise departure(f"the query as {brief(query)} gives other hits than as a string, and is not refused")


@_check("retrieve.no-match", "L0", "7.7", "retrieve")
async def no_match(subject: Subject) -> None:
    """A question that nothing matches is answered, with few hits or none, and not refused."""
    await subject.retrieve(query="zqxj-7f3a-no-such-thing-vwpk", k=2)


@_check("retrieve.confidence", "L1", "7.7", "retrieve")
async def confidence(subject: Subject) -> None:
    """A confidence lies in [0,1]; who advertises it gives it."""
    found = [hit["confidence"] for hit in await subject.hits() if hit.get("confidence") is not None]
    for value in found:
        if not is_number(value) or not 0 <= value <= 1:
            raise Departure(f"a confidence is {brief(value)}, which is no number in [0,1]")
    if not found and subject.offer("retrieve").get("confidence"):
        raise Departure("retrieve.confidence is advertised, and no hit has one")


@_check("retrieve.score-floor", "L1", "6", "retrieve")
async def score_floor(subject: Subject) -> None:
    """No score is below `scoreFloor`."""
    floor = subject.offer("retrieve").get("scoreFloor")
    if not is_number(floor):
        raise Skipped("retrieve.scoreFloor is not advertised")
    low = [hit["score"] for hit in await subject.hits() if hit["score"] < floor]
    if low:
        raise Departure(f"scoreFloor is {floor}, and a hit has the score {low[0]}")


@_check("retrieve.trust", "L1", "15", "retrieve")
async def trust(subject: Subject) -> None:
    """Where a hit says how far it is to be trusted, it says so in RCP's words."""
    found = [hit["trust"] for hit in await subject.hits() if hit.get("trust") is not None]
    if not found:
        raise Skipped("no hit says anything about trust")
    for said in found:
        if not isinstance(said, dict) or said.get("level") not in TRUST:
            raise Departure(f"trust needs a 'level' out of {', '.join(TRUST)}: {brief(said)}")
        if said.get("score") is not None and not (is_number(said["score"]) and 0 <= said["score"] <= 1):
            raise Departure(f"trust.score lies in [0,1]: {brief(said)}")


@_check("retrieve.include-text", "L1", "7.7", "retrieve", rule="SHOULD")
async def include_text(subject: Subject) -> None:
    """With `includeText: false` no hit carries its text; without it, hits do."""
    if not any(hit.get("text") or hit.get("content") for hit in await subject.hits()):
        raise Departure("no hit carries text or content, though includeText is true by default")
    kept = [hit["id"] for hit in (await subject.retrieve(k=5, includeText=False))["hits"] if hit.get("text")]
    if kept:
        raise Departure(f"includeText was false, and the hit {brief(kept[0])} carries its text")


@_check("retrieve.include-vectors", "L1", "7.7", "retrieve")
async def include_vectors(subject: Subject) -> None:
    """Vectors come only if asked for, and then they do or are refused: lists of numbers of the advertised dimension."""
    if any(hit.get("vector") is not None for hit in await subject.hits()):
        raise Departure("hits carry vectors, though includeVectors is false by default")
    asked = {"query": subject.wishes.query, "k": 3, "includeVectors": True}
    response = (await subject.ask("retrieve", asked)).response()
    result = response.get("result")
    if not isinstance(result, dict):
        raise Skipped("vectors are not given out")
    vectors = [hit["vector"] for hit in result.get("hits", []) if hit.get("vector") is not None]
    if result.get("hits") and not vectors:
        # An option that is not advertised may be ignored, and no capability speaks of vectors.
        raise Tolerated("includeVectors was true and not refused, and no hit carries a vector")
    dimension = subject.offer("embed").get("dimension")
    for vector in vectors:
        if not isinstance(vector, list) or not all(map(is_number, vector)):
            raise Departure(f"a vector is a list of numbers, and not {brief(vector)}")
        if dimension is not None and len(vector) != dimension:
            raise Departure(f"embed.dimension is {dimension}, and a hit's vector has {len(vector)}")


@_check("retrieve.deterministic", "L1", "6", "retrieve")
async def deterministic(subject: Subject) -> None:
    """Who advertises `deterministic` gives the same hits and scores for the same question."""
    if subject.offer("retrieve").get("deterministic") is not True:
        raise Skipped("retrieve.deterministic is not advertised")
    one, other = [(await subject.retrieve(k=10))["hits"] for _ in range(2)]
    if not same(one, other):
        raise Departure("the same question twice gave different hits")


@_check("citations.shape", "L1", "7.7", "retrieve", "citations")
async def citations(subject: Subject) -> None:
    """Hits carry citations that name a source, and whose parts are of the right types."""
    found = [hit["citation"] for hit in await subject.hits() if hit.get("citation") is not None]
    if not found:
        raise Departure("citations are advertised, and no hit has one")
    for citation in found:
        if not isinstance(citation, dict) or not any(citation.get(key) for key in ("source", "uri", "title")):
            raise Departure(f"a citation names a source, a uri or a title: {brief(citation)}")
        for key in ("source", "uri", "title"):
            if citation.get(key) is not None and not isinstance(citation[key], str):
                raise Departure(f"citation.{key} is a string, and not {brief(citation[key])}")
        for key in ("start", "end", "page"):
            if citation.get(key) is not None and not is_integer(citation[key]):
                raise Departure(f"citation.{key} is an integer, and not {brief(citation[key])}")


def _typed(hit: Json) -> None:
    """See that the optional parts of a hit are of the right types. Raises Departure."""
    for key, kind in (("text", str), ("meta", dict), ("scores", dict), ("provenance", dict), ("chunk", dict)):
        if hit.get(key) is not None and not isinstance(hit[key], kind):
            raise Departure(f"'{key}' of a hit must be of type {kind.__name__}, and is {brief(hit[key])}")
    for stage, score in (hit.get("scores") or {}).items():
        if not is_number(score):
            raise Departure(f"'scores.{stage}' of a hit must be a number, and is {brief(score)}")
    for key, allowed in (("unit", UNITS), ("modality", MODALITIES)):
        if hit.get(key) is not None and hit[key] not in allowed:
            raise Departure(f"'{key}' of a hit says {brief(hit[key])}, and RCP knows {', '.join(allowed)}")
