"""docs/reference/methods.md agrees with the code: the examples are run as printed, reasons and numbers are checked."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.federation import forward
from app.federation.methods import embed
from app.federation.outcome import MAX_HITS
from app.protocol.method_params import MAX_HOPS, MAX_VARIANTS
from app.protocol.retrieve_params import DEFAULT_K
from tests.support.running_gateway import Json, entry, running
from tests.support.scripted_engine import ScriptedEngine

PROJECT = Path(__file__).parents[2]
FEDERATION = Path(forward.__file__).parent  # installed with the wheel, too
TEXT = (PROJECT / "docs" / "reference" / "methods.md").read_text(encoding="utf-8")
QUIET = {"tookMs", "id", "detail"}
"""What differs from run to run, or between systems."""


def examples() -> Iterator[tuple[Json, Json]]:
    """(request, response) of each example, in order."""
    said: list[Json] = []
    for block in re.findall(r"^```json\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        try:
            said.append(json.loads(block))
        except ValueError:
            said.extend(json.loads(line) for line in block.splitlines())
    assert len(said) % 2 == 0
    yield from zip(said[::2], said[1::2], strict=True)


def plain(value: Any) -> Any:
    """`value` without what differs from run to run."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items() if key not in QUIET}
    return [plain(member) for member in value] if isinstance(value, list) else value


async def test_the_examples_are_asked_and_answered(engines: Any) -> None:
    """Each request of the page is answered as the page says, by engines that give what it takes."""
    docs: ScriptedEngine = await engines(
        capabilities={"index": {"writable": True}, "graph": {"ops": ["neighbors"]}, "memory": {}, "feedback": {}}
    )
    judge: ScriptedEngine = await engines(capabilities={"rerank": {}})
    spare: ScriptedEngine = await engines(
        capabilities={
            "rerank": {},
            "embed": {"identity": "m", "dimension": 2, "encodings": ["f32-base64"]},
            "transform": {"methods": ["multi-query"]},
            "graph": {},
        }
    )
    docs.answers |= {
        "index/add": {"ids": ["7", "b41f"], "chunks": 2},
        "graph": {
            "nodes": [{"id": "keys", "label": "Keys"}],
            "edges": [{"src": "keys", "dst": "rotation", "weight": 0.8}],
        },
        "memory/recall": {"clues": [{"query": "key rotation", "seedIds": ["keys"], "weight": 0.9}]},
        "feedback": {"accepted": 1},
    }
    spare.answers |= {
        "rerank": {"results": [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.2}]},
        "embed": {"vectors": ["AACAPwAAAEA=", "AABAQAAAgEA="], "encoding": "f32-base64", "dimension": 2},
        "query/transform": {"queries": ["rotate signing keys", "how often to change keys"]},
        "graph": {"nodes": [{"id": 7}]},
    }
    registry = [
        entry("docs", docs, idNamespace="docs"),
        entry("judge", judge, priority=1),
        entry("spare", spare, idNamespace="spare"),
    ]
    played = []
    async with running(registry, {"index": {"enabled": True}}) as gateway:
        await judge.stop()
        for request, response in examples():
            answer = (await gateway.post(request)).json()
            told = response["result"].get("_meta")
            if "usage" not in response["result"]:
                answer["result"].pop("usage", None)
            if told is None:
                answer["result"].pop("_meta")
            else:
                states = [engine["status"] for engine in answer["result"]["_meta"]["x-gateway"]["engines"]]
                assert states == [engine["status"] for engine in told["x-gateway"]["engines"]]
                for made, shown in zip(
                    answer["result"]["_meta"]["x-gateway"]["engines"], told["x-gateway"]["engines"], strict=True
                ):
                    assert made.keys() == shown.keys()
                    made.update({key: shown[key] for key in ("reason", "attempts") if key in shown})
            assert plain(answer) == plain(response)
            played.append(request["method"])
    assert played == ["rerank", "embed", "query/transform", "index/add", "graph", "memory/recall", "feedback"]


def test_every_reason_is_there() -> None:
    """Each reason for which a candidate is skipped is in the list, and no other."""
    line = TEXT.split("Skip reasons:", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", line)))
    given = {"limit", "option", "unfit"}  # a Misfit's own
    for path in (*FEDERATION.glob("methods/*.py"), *(FEDERATION / f"{name}.py" for name in ("candidates", "forward"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "skipped":
                given |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
    assert named == {str(reason) for reason in given}


def test_the_numbers_are_those_of_the_code() -> None:
    """Codes that let the next engine be asked, parts at a time, variants."""
    line = TEXT.split("an engine speaks of itself:", 1)[1].split(". ", 1)[0]
    assert {int(code) for code in re.findall(r"-\d+", line)} == forward.TRY_NEXT
    assert embed.AT_ONCE == 8
    assert "up to eight at a time" in TEXT
    assert f"`n` is at most {MAX_VARIANTS}" in TEXT
    assert f"`hops` above {MAX_HOPS} are lowered" in TEXT
    assert f"an engine's first {MAX_HITS} count" in TEXT
    assert f"at most `k` ({DEFAULT_K})" in TEXT
