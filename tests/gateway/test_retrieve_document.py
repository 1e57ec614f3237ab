"""docs/reference/retrieve.md agrees with the gateway: the example is run as printed, the lists are complete."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from app import federation
from app.protocol.retrieve_params import GatewayOptions, RetrieveOptions
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import hit

PROJECT = Path(__file__).parents[2]
FEDERATION = Path(federation.__file__).parent  # installed with the wheel, too
TEXT = (PROJECT / "docs" / "reference" / "retrieve.md").read_text(encoding="utf-8")

LANG = {"filter": {"fields": {"lang": "keyword"}}}
FOUND = [
    hit("keys#rotate", 7.1, 0.9, text="Rotate the signing keys once a quarter."),
    hit("keys#lost", 5.0, 0.6, text="What to do when a key is lost."),
    hit("x", 4.0, 0.5),
]


def told(answer: Any) -> Any:
    """An answer without what depends on time and chance."""
    assert re.fullmatch(r"[0-9a-f]{32}", answer["result"].pop("nextCursor"))
    assert answer["result"]["usage"].pop("latencyMs") > 0
    for engine in answer["result"]["_meta"]["x-gateway"]["engines"]:
        assert engine.pop("tookMs") >= 0
    return answer


async def test_the_example_is_asked_and_answered(engines: Any) -> None:
    """The request in the document gets the answer in the document, but for times and the name of the cursor."""
    request, answer = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
    docs = await engines(capabilities={"retrieve": {"maxK": 100, "modes": ["dense", "sparse", "hybrid"]}, **LANG})
    docs.answers["retrieve"] = {"hits": FOUND, "usage": {"candidates": 40, "reranked": 0}}
    code = await engines(capabilities={"retrieve": {"maxK": 50, "modes": ["sparse"]}, **LANG})
    code.answers["retrieve"] = {"hits": [hit("keys#rotate", 0.8, 0.7, text="Rotate the signing keys")]}
    wiki = await engines(capabilities={"retrieve": {}})
    entries = [entry("docs", docs), entry("code", code), entry("wiki", wiki)]
    async with running(entries, fingerprint="1f2e3d4c") as gateway:
        real = (await gateway.post(request)).json()
    assert told(real) == told(answer)


def rows_under(heading: str) -> set[str]:
    """What stands in backquotes in the first column of the table that follows."""
    table = TEXT.split(heading, 1)[1].split("\n\n", 2)[1]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_option_is_there() -> None:
    """Each option of `retrieve` and of `x-gateway` has its row, and no other has one."""
    options = {info.alias or name for name, info in RetrieveOptions.model_fields.items()} - {"strict"}
    assert rows_under("\n## Options") == options | {"query", "filter", "x-…", "_meta"}
    ours = {info.alias or name for name, info in GatewayOptions.model_fields.items()}
    assert rows_under("`x-gateway` is read by this gateway only:") == ours - {"engine"}, "`engine` is for writing"


def test_every_reason_is_there() -> None:
    """Each reason for which a plan skips an engine is in the list, and no other."""
    line = TEXT.split("Skip reasons:", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", line)))
    given: set[str] = set()
    for path in FEDERATION.glob("*.py"):
        if path.stem in ("candidates", "forward", "broadcast"):  # other methods: docs/reference/methods.md
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._skip", "skipped"):
                given |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and path.stem == "request_options":
                given |= {part.value for part in node.value.elts[:1] if isinstance(part, ast.Constant)}
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "plan_without_calls":
                given |= {argument.value for argument in node.args[3:4] if isinstance(argument, ast.Constant)}
    assert named == {str(reason) for reason in given}
