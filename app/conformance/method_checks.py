"""Checks of the other methods: query/transform, graph, index, feedback, memory, catalog (RCP §7.8 to §7.17).

Checks that write are skipped without `--write`.
"""

from uuid import uuid4

from app.conformance.reply import Json, brief, is_integer, is_number
from app.conformance.subject import Subject
from app.conformance.suite import Suite
from app.conformance.verdict import Departure, Skipped, Tolerated

INVALID_PARAMS = -32602
OPTION_UNSUPPORTED = -32005

TRANSFORMS = ("rewrite", "hyde", "multi-query", "decompose", "step-back")
OPS = ("local", "global", "drift", "communities", "neighbors")

suite = Suite()
_check = suite.check


@_check("transform.queries", "L2", "7.8", "transform")
async def transform(subject: Subject) -> None:
    """Every method that is advertised gives queries, and `hyde` a `hypothetical` document."""
    for method in subject.offered("transform", "methods"):
        result = await subject.result("query/transform", {"query": subject.wishes.query, "method": method})
        queries, hypothetical = result.get("queries"), result.get("hypothetical")
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise Departure(f"{method} gives 'queries', a list of strings, and not {brief(queries)}")
        if method == "hyde" and not (isinstance(hypothetical, str) and hypothetical):
            raise Departure(f"hyde gives 'hypothetical', a text, and not {brief(hypothetical)}")
        if not queries and method != "hyde":
            raise Departure(f"{method} gave no query")


@_check("transform.methods", "L2", "7.8", "transform")
async def transform_methods(subject: Subject) -> None:
    """A method that is not advertised is -32005."""
    other = next((name for name in TRANSFORMS if name not in subject.offered("transform", "methods")), None)
    if other is None:
        raise Skipped("every method is advertised")
    await subject.refusal("query/transform", {"query": subject.wishes.query, "method": other}, OPTION_UNSUPPORTED)


@_check("graph.results", "L2", "7.9", "graph")
async def graph(subject: Subject) -> None:
    """Every op that is advertised gives the parts that belong to it."""
    for op in subject.offered("graph", "ops"):
        params: Json = {"op": op, "query": subject.wishes.query, "k": 3}
        if op == "neighbors":
            params |= {"seedIds": await _seeds(subject), "hops": 1}
        result = await subject.result("graph", params)
        for part in PARTS.get(op, ()):
            if not isinstance(result.get(part), str if part == "summary" else list):
                raise Departure(f"graph {op} gives '{part}', and here it is {brief(result.get(part))}")
        for part in ("hits", "communities", "nodes"):
            for member in result.get(part) or []:
                if not isinstance(member, dict) or type(member.get("id")) not in (str, int, float):
                    raise Departure(f"each of the {part} of graph {op} has an 'id': {brief(member)}")


@_check("graph.ops", "L2", "7.9", "graph")
async def graph_ops(subject: Subject) -> None:
    """An op that is not advertised is -32005."""
    other = next((op for op in OPS if op not in subject.offered("graph", "ops")), None)
    if other is None:
        raise Skipped("every op is advertised")
    await subject.refusal("graph", {"op": other, "query": subject.wishes.query, "seedIds": ["a"]}, OPTION_UNSUPPORTED)


@_check("catalog.list", "L1", "7.13", "catalog")
async def catalog(subject: Subject) -> None:
    """The catalog lists as many engines as advertised, each once, with its server and its capabilities."""
    listed = (await subject.result("catalog/list", {})).get("engines")
    if not isinstance(listed, list):
        raise Departure(f"catalog/list gives 'engines', a list, and not {brief(listed)}")
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise Departure(f"an engine of the catalog has an 'id', which is a string: {brief(entry)}")
        if not isinstance(entry.get("server"), dict) or not isinstance(entry.get("capabilities"), dict):
            raise Departure(f"an engine of the catalog has 'server' and 'capabilities': {brief(entry)}")
    ids = [entry["id"] for entry in listed]
    if len(set(ids)) != len(ids):
        raise Departure(f"an id comes twice in the catalog: {brief(ids)}")
    told = subject.offer("catalog").get("engines")
    if is_integer(told) and told != len(listed):
        raise Departure(f"catalog.engines says {told}, and {len(listed)} are listed")


@_check("feedback.accepted", "L1", "7.16", "feedback")
async def feedback(subject: Subject) -> None:
    """Signals are taken, and counted in `accepted`."""
    signals = [{"hitId": "conformance-no-such-hit", "used": False}]
    accepted = (await subject.result("feedback", {"query": subject.wishes.query, "signals": signals})).get("accepted")
    if not is_integer(accepted) or not 0 <= accepted <= 1:
        raise Departure(f"one signal was sent, and 'accepted' is {brief(accepted)}")


@_check("feedback.bad-signals", "L1", "7.16", "feedback", rule="SHOULD")
async def bad_signals(subject: Subject) -> None:
    """A signal without a hit, or with a reward beyond [-1,1], is -32602."""
    for signal in ({"used": True}, {"hitId": "conformance-no-such-hit", "reward": 2}):
        if await subject.accepts("feedback", {"signals": [signal]}):
            raise Tolerated(f"the signal {brief(signal)} was taken")
        await subject.refusal("feedback", {"signals": [signal]}, INVALID_PARAMS)


@_check("memory.recall", "L1", "7.17", "memory")
async def recall(subject: Subject) -> None:
    """A recall gives clues, each with a query or seeds."""
    _clues(await subject.result("memory/recall", {"query": subject.wishes.query, "n": 3}))


@_check("memory.round-trip", "L1", "7.17", "memory")
async def memory(subject: Subject) -> None:
    """What is built as a memory can be recalled by its id."""
    _need_write(subject)
    scopes = subject.offered("memory", "scopes") or ["global"]
    scope = "session" if "session" in scopes else scopes[0]
    built = await subject.result("memory/build", {"documents": [{"text": "conformance probe"}], "scope": scope})
    if not isinstance(built.get("memoryId"), str):
        raise Departure(f"memory/build gives 'memoryId', a string, and not {brief(built.get('memoryId'))}")
    _clues(await subject.result("memory/recall", {"query": "probe", "memoryId": built["memoryId"]}))


@_check("index.round-trip", "L1", "7.10", "index")
async def index(subject: Subject) -> None:
    """Documents are added under their ids and in their order, added again, deleted, and deleted again."""
    _need_write(subject)
    if subject.offer("index").get("writable") is False:
        raise Skipped("index.writable is false")
    ids = [f"conformance-{uuid4()}" for _ in range(2)]
    documents = [{"id": document_id, "text": f"conformance probe {document_id}"} for document_id in ids]
    for _ in range(2):
        added = (await subject.result("index/add", {"documents": documents})).get("ids")
        if added != ids:
            raise Departure(f"the documents {brief(ids)} were added, and 'ids' is {brief(added)}")
    for expected in (2, 0):
        deleted = (await subject.result("index/delete", {"ids": ids})).get("deleted")
        if deleted != expected:
            raise Departure(f"'deleted' should be {expected} now, and is {brief(deleted)}")


@_check("index.no-documents", "L1", "7.10", "index")
async def no_documents(subject: Subject) -> None:
    """An addition without documents is -32602."""
    _need_write(subject)
    await subject.refusal("index/add", {}, INVALID_PARAMS)


PARTS = {
    "local": ("hits",),
    "drift": ("hits", "followups"),
    "global": ("summary", "communities"),
    "communities": ("communities",),
    "neighbors": ("nodes", "edges"),
}
"""Op -> what its result has (RCP §7.9)."""


async def _seeds(subject: Subject) -> list[str]:
    if not subject.offers("retrieve"):
        return ["a"]
    return [str(hit["id"]) for hit in (await subject.hits())[:2]]


def _clues(result: Json) -> None:
    clues = result.get("clues")
    if not isinstance(clues, list) or not all(isinstance(clue, dict) for clue in clues):
        raise Departure(f"memory/recall gives 'clues', a list of objects, and not {brief(clues)}")
    for clue in clues:
        if clue.get("weight") is not None and not is_number(clue["weight"]):
            raise Departure(f"the weight of a clue is a number: {brief(clue)}")
        if not isinstance(clue.get("query"), str) and not isinstance(clue.get("seedIds"), list):
            raise Departure(f"a clue has a 'query' or 'seedIds': {brief(clue)}")


def _need_write(subject: Subject) -> None:
    if not subject.wishes.write:
        raise Skipped("nothing may be written here; allow it with --write, best on a server made for it")
