"""Engines with a graph, a memory or an ear for feedback, for tests of the methods that several engines answer."""

from typing import Any

from tests.support.running_gateway import Json
from tests.support.scripted_engine import ScriptedEngine

OPS = ["local", "global", "drift", "communities", "neighbors"]


async def graphing(engines: Any, answer: Any, ops: list[str] | None = None, **more: Any) -> ScriptedEngine:
    """A started engine that answers `graph` so."""
    engine: ScriptedEngine = await engines(capabilities={"graph": {"ops": OPS if ops is None else ops}, **more})
    engine.answers["graph"] = answer
    return engine


async def remembering(engines: Any, **answers: Any) -> ScriptedEngine:
    """A started engine with memories; `build` and `recall` are what it answers."""
    engine: ScriptedEngine = await engines(capabilities={"memory": {"scopes": ["global", "session"]}})
    for name, answer in answers.items():
        engine.answers[f"memory/{name}"] = answer
    return engine


async def listening_to_feedback(engines: Any, answer: Any = None, **more: Any) -> ScriptedEngine:
    """A started engine that takes feedback, by default all of it."""

    async def all_of_it(asked: Any) -> Json:
        return {"accepted": len(asked.params["signals"])}

    engine: ScriptedEngine = await engines(capabilities={"retrieve": {"maxK": 100}, "feedback": {}}, **more)
    engine.answers["feedback"] = all_of_it if answer is None else answer
    return engine


def reported(result: Json) -> dict[str, str]:
    """Engine id -> why it was not asked or why it failed, else its status."""
    return {told["id"]: told.get("reason", told["status"]) for told in result["_meta"]["x-gateway"]["engines"]}


def bare(members: list[Json]) -> list[Json]:
    """The members of an answer without what the gateway says about whose they are."""
    return [{key: value for key, value in member.items() if key != "meta"} for member in members]
