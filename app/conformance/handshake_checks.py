"""Checks of the handshake: requests before it, its result, and a second handshake (RCP §7.1, §7.2, §13).

They run first and in this order, because a session begins only once. A stateless HTTP server passes as well.
"""

from collections.abc import Callable
from typing import Any

from app.conformance.reply import Json, brief, is_integer, same, told
from app.conformance.subject import ABSENT, HELLO, Subject
from app.conformance.suite import Suite
from app.conformance.verdict import LEVELS, Departure, Skipped, Tolerated

NOT_INITIALIZED = -32001
VERSION_MISMATCH = -32002
INVALID_REQUEST = -32600

RETRIEVAL = ("embed", "rerank", "retrieve", "graph")
"""Capabilities of which L0 wants one (RCP §14)."""

suite = Suite()
_check = suite.check


@_check("handshake.info-first", "L0", "7.2")
async def info_first(subject: Subject) -> None:
    """`info` is answered before the handshake."""
    described_by(await subject.result("info", {}), "info")


@_check("handshake.ping-first", "L0", "7.11")
async def ping_first(subject: Subject) -> None:
    """`ping` is answered before the handshake."""
    await subject.result("ping", {})


@_check("handshake.required", "L0", "13.1")
async def required(subject: Subject) -> None:
    """Before the handshake a method with a gate is -32001, unless the server keeps no sessions over HTTP."""
    response = (await subject.ask("retrieve", {"query": subject.wishes.query, "k": 1})).response()
    code = response.get("error", {}).get("code")
    subject.stateless = code != NOT_INITIALIZED
    if subject.stateless and subject.peer.kind == "stdio":
        found = "a result" if code is None else told(response["error"])
        raise Departure(f"retrieve before initialize got {found}; over stdio it must be -32001")


@_check("handshake.version", "L0", "7.1")
async def version(subject: Subject) -> None:
    """A client that speaks no version from 1 on is -32002, and is not initialized by it."""
    response = (await subject.ask("initialize", {**HELLO, "protocolVersion": 0})).response()
    if "result" in response:
        raise Departure("initialize with protocolVersion 0 was answered with a result instead of -32002")
    if response["error"].get("code") == INVALID_REQUEST:
        raise Skipped("somebody else has initialized this server before; restart it to have this checked")
    await subject.refusal("initialize", {**HELLO, "protocolVersion": 0}, VERSION_MISMATCH)
    if not subject.stateless:
        await subject.refusal("retrieve", {"query": subject.wishes.query, "k": 1}, NOT_INITIALIZED)


@_check("handshake.initialize", "L0", "7.1")
async def initialize(subject: Subject) -> None:
    """`initialize` gives the version, the server's name and version, and its capabilities."""
    await shake_hands(subject)
    described_by(subject.described, "initialize")
    if subject.described["protocolVersion"] != 1:
        raise Departure(f"a client of version 1 was given version {brief(subject.described['protocolVersion'])}")


@_check("handshake.again", "L0", "13.1")
async def again(subject: Subject) -> None:
    """A second `initialize` in a session is -32600; a server without sessions says the same as before."""
    response = (await subject.ask("initialize", HELLO)).response()
    if "error" in response:
        await subject.refusal("initialize", HELLO, INVALID_REQUEST)
    elif not (subject.stateless and subject.peer.kind == "http"):
        raise Departure("a second initialize was answered with a result instead of -32600")
    elif not same(response["result"].get("capabilities"), subject.capabilities):
        raise Departure("a second initialize told other capabilities than the first")


@_check("handshake.version-min", "L0", "7.1", over="http")
async def version_min(subject: Subject) -> None:
    """A client of a later version is given the server's own."""
    response = (await subject.ask("initialize", {**HELLO, "protocolVersion": 99})).response()
    if "error" in response:
        raise Skipped("this session is initialized already, and version 1 was agreed on")
    given = response["result"].get("protocolVersion")
    if not is_integer(given) or not 1 <= given < 99:
        raise Departure(f"a client of version 99 was given {brief(given)}")


@_check("handshake.info", "L0", "7.2")
async def info(subject: Subject) -> None:
    """`info` says the same as `initialize`, and as often as it is asked."""
    for _ in range(2):
        result = await subject.result("info", {})
        described_by(result, "info")
        for key in ("capabilities", "server"):
            if not same(result[key], subject.described[key]):
                raise Departure(f"info and initialize say different things in '{key}'")


@_check("handshake.ping", "L0", "7.11")
async def ping(subject: Subject) -> None:
    """`ping` gives back the nonce in type and value, and none where none was given."""
    text = 'line\nbreak "quoted" \\ tab\t café 漢字 😀 \u2028 end'
    for nonce in ("n", text, "x" * 65_536, 777, -1, 0.5, "777"):
        found = (await subject.result("ping", {"nonce": nonce})).get("nonce")
        if not same(found, nonce):
            raise Departure(f"the nonce {brief(nonce)} came back as {brief(found)}")
    found = await subject.result("ping", {})
    if found.get("nonce") is not None:
        raise Departure(f"a ping without a nonce was given one: {brief(found)}")


@_check("handshake.null-params", "L0", "4.3")
async def null_params(subject: Subject) -> None:
    """Params that are absent or null count as empty."""
    for params in (ABSENT, None):
        (await subject.ask("ping", params)).result("a ping with params absent or null")


@_check("capabilities.retrieval", "L0", "14")
async def retrieval(subject: Subject) -> None:
    """At least one capability of retrieval is advertised: embed, rerank, retrieve or graph."""
    if not any(subject.offers(name) for name in RETRIEVAL):
        raise Departure(f"none of {', '.join(RETRIEVAL)} is advertised")


@_check("capabilities.shape", "L0", "6")
async def shape(subject: Subject) -> None:
    """Each capability is an object, and its fields are of the types that RCP gives them."""
    for name, value in subject.capabilities.items():
        if not isinstance(value, dict):
            raise Departure(f"capability '{name}' is no object but {brief(value)}")
    for capability, name, kind in FIELDS:
        value = subject.offer(capability).get(name)
        if value is not None and not KINDS[kind](value):
            raise Departure(f"'{capability}.{name}' must be {kind}, and is {brief(value)}")


@_check("capabilities.enums", "L0", "6")
async def enums(subject: Subject) -> None:
    """What RCP gives names to is called by those names."""
    for capability, name, allowed in ENUMS:
        value = subject.offer(capability).get(name)
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            if item not in allowed:
                raise Departure(f"'{capability}.{name}' says {brief(item)}, and RCP knows {', '.join(allowed)}")


@_check("capabilities.claim", "L0", "14")
async def claim(subject: Subject) -> None:
    """`_meta.conformance` states the level: L0, L1 or L2."""
    if subject.claimed is None:
        raise Departure("no level is stated: the result of initialize needs _meta.conformance, 'L0', 'L1' or 'L2'")
    if subject.claimed not in LEVELS:
        raise Departure(f"_meta.conformance says {brief(subject.claimed)}, and there are {', '.join(LEVELS)}")


@_check("capabilities.identity", "L1", "6", rule="SHOULD")
async def identity(subject: Subject) -> None:
    """An embedding space has a name and a size, so that vectors of two servers can be told apart."""
    for capability in ("embed", "sparseEmbed", "multiVector"):
        if subject.offers(capability) and not subject.offer(capability).get("identity"):
            raise Tolerated(f"'{capability}.identity' is not advertised")


async def shake_hands(subject: Subject) -> None:
    """Begin the session; where somebody else has initialized the server, `info` tells what it is. Raises Departure."""
    response = (await subject.ask("initialize", HELLO)).response()
    if response.get("error", {}).get("code") == INVALID_REQUEST:
        subject.described = await subject.result("info", {})
        return
    if "error" in response:
        raise Departure(f"initialize was refused: {told(response['error'])}")
    if not isinstance(response["result"], dict):
        raise Departure(f"the result of initialize is no object but {brief(response['result'])}")
    subject.described = response["result"]
    meta = subject.described.get("_meta")
    token = meta.get("session") if isinstance(meta, dict) else None
    if isinstance(token, str):
        subject.peer.join_session(token)


def described_by(result: Json, method: str) -> None:
    """See that a result of `initialize` or `info` has all its parts. Raises Departure."""
    version = result.get("protocolVersion")
    if type(version) is not int or version < 1:
        raise Departure(f"{method} needs an integer 'protocolVersion' of at least 1, and has {brief(version)}")
    server = result.get("server")
    if not isinstance(server, dict) or not all(isinstance(server.get(key), str) for key in ("name", "version")):
        raise Departure(f"{method} needs 'server' with the strings 'name' and 'version', and has {brief(server)}")
    if not isinstance(result.get("capabilities"), dict):
        raise Departure(f"{method} needs an object 'capabilities', and has {brief(result.get('capabilities'))}")


KINDS: dict[str, Callable[[Any], bool]] = {
    "a positive integer": lambda value: is_integer(value) and value >= 1,
    "a boolean": lambda value: isinstance(value, bool),
    "a string": lambda value: isinstance(value, str),
    "a number": lambda value: type(value) in (int, float),
    "a list of strings": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
}
FIELDS = (
    ("embed", "dimension", "a positive integer"),
    ("embed", "identity", "a string"),
    ("embed", "batchLimit", "a positive integer"),
    ("embed", "normalized", "a boolean"),
    ("sparseEmbed", "identity", "a string"),
    ("multiVector", "dimension", "a positive integer"),
    ("multiVector", "identity", "a string"),
    ("rerank", "methods", "a list of strings"),
    ("rerank", "maxCandidates", "a positive integer"),
    ("retrieve", "maxK", "a positive integer"),
    ("retrieve", "modes", "a list of strings"),
    ("retrieve", "modalities", "a list of strings"),
    ("retrieve", "units", "a list of strings"),
    ("retrieve", "mmr", "a boolean"),
    ("retrieve", "tokenBudget", "a boolean"),
    ("retrieve", "confidence", "a boolean"),
    ("retrieve", "deterministic", "a boolean"),
    ("retrieve", "snapshots", "a boolean"),
    ("retrieve", "scoreFloor", "a number"),
    ("transform", "methods", "a list of strings"),
    ("graph", "ops", "a list of strings"),
    ("index", "writable", "a boolean"),
    ("memory", "scopes", "a list of strings"),
    ("filter", "operators", "a list of strings"),
)
ENUMS = (
    ("retrieve", "modes", ("dense", "sparse", "hybrid")),
    ("retrieve", "defaultMode", ("dense", "sparse", "hybrid")),
    ("retrieve", "scoreScale", ("cosine", "dot", "bm25", "probability", "unbounded")),
    ("transform", "methods", ("rewrite", "hyde", "multi-query", "decompose", "step-back")),
    ("graph", "ops", ("local", "global", "drift", "communities", "neighbors")),
    ("memory", "scopes", ("global", "session")),
    ("filter", "operators", ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "exists")),
)
