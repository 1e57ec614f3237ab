"""What docs/ says is held to the code: every key and default, blocks of data, links, and the worked example."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from app.settings.doorway import DoorTls
from app.settings.schema import EngineBreaker, EngineEntry, EngineTls, GatewaySettings, Registry, file_name
from tests.support.corpora import corpus as documents
from tests.support.corpora import ids, pages_of
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import ScriptedEngine

PROJECT = Path(__file__).parents[1]
DOCS = sorted((PROJECT / "docs").rglob("*.md"))
PAGES = [*DOCS, *sorted(PROJECT.glob("*.md"))]
REGISTRY = (PROJECT / "docs" / "registry.md").read_text(encoding="utf-8")

Json = dict[str, Any]


def name_of(page: Path) -> str:
    """A page's path as people write it."""
    return page.relative_to(PROJECT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def table_under(heading: str) -> dict[str, str]:
    """Key -> default of the table of docs/registry.md under this heading; no key twice."""
    section = REGISTRY.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| (required|`[^`]+`) \| [^|]+ \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n|") - 2, "a row has another form"
    assert len(rows) == len(dict(rows))
    return {key: default.strip("`") for key, default in rows}


def defaults_of(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Key as it is written in the file -> its default as JSON, or `required`."""
    found = {}
    for field, info in model.model_fields.items():
        default = info.get_default(call_default_factory=True)
        written = "required" if default is PydanticUndefined else json.dumps(default)
        found[prefix + file_name(model, field)] = written
    return found


def test_every_key_of_the_registry_is_documented() -> None:
    """The table of the registry has every key of an engine, no other, and the defaults that hold."""
    assert list(Registry.model_fields) == ["engines"]
    nested = {**defaults_of(EngineTls, "tls."), **defaults_of(EngineBreaker, "breaker.")}
    assert table_under("The registry") == {**defaults_of(EngineEntry), **nested}


def test_every_setting_is_documented() -> None:
    """The table of gateway.yaml has every setting, no other, and the defaults that hold."""
    expected: dict[str, str] = {}
    for section, info in GatewaySettings.model_fields.items():
        model: Any = info.annotation
        expected |= defaults_of(model, f"{section}.")
    expected |= defaults_of(DoorTls, "server.tls.")
    assert table_under("The gateway") == expected


def test_example_files_are_valid() -> None:
    """The files shown in docs/registry.md are a registry and settings."""
    page = PROJECT / "docs" / "registry.md"
    (registry,), (settings,) = blocks(page, "json"), blocks(page, "yaml")
    assert Registry.model_validate_json(registry).engines
    assert GatewaySettings.model_validate(yaml.safe_load(settings))


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_blocks_of_data_are_data(page: Path) -> None:
    """Each JSON block is one value or one a line, and each YAML block can be read."""
    for block in blocks(page, "json"):
        try:
            json.loads(block)
        except ValueError:
            assert all(json.loads(line) is not None for line in block.splitlines())
    for block in blocks(page, "ya?ml"):
        assert yaml.safe_load(block) is not None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file that there is."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert re.match(r"[a-z]+:", link) or (page.parent / link).exists(), link


def test_the_tests_that_hold_a_promise_are_there() -> None:
    """Every test that docs/security.md names exists, under that name, exactly once; each promise names one."""
    page = (PROJECT / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.split("## Promised, and tested", 1)[1].split("\n## ", 1)[0]
    sources = [path.read_text(encoding="utf-8") for path in (PROJECT / "tests").rglob("test_*.py")]
    defined = [name for text in sources for name in re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)]
    promises = [row for row in section.splitlines() if row.startswith("| **")]
    assert len(promises) > 15
    for promise in promises:
        named = re.findall(r"`(test_\w+)`", promise)
        assert named, promise
        for name in named:
            assert defined.count(name) == 1, name


def test_readme_names_every_document() -> None:
    """Whoever reads the README finds each page of docs/."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    for page in (PROJECT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in readme


async def test_the_three_pages_are_as_told() -> None:
    """The worked example of docs/architecture.md: what is asked, what is served, and why nobody else is."""
    async with ScriptedEngines(docs=range(24), code=range(100, 106)) as (docs, code):
        async with running([entry("docs", docs), entry("code", code)]) as gateway:
            pages = await pages_of(gateway, (10,))
        assert [len(page["hits"]) for page in pages] == [10, 10, 10]
        assert set(ids(*pages)) == {*range(24), *range(100, 106)}
        assert [request.params["k"] for request in docs.requests()] == [20, 40]
        assert [request.params["k"] for request in code.requests()] == [20]
    assert [told(page) for page in pages] == [
        {"docs": "ok", "code": "ok"},
        {"docs": "kept", "code": "kept"},
        {"docs": "ok", "code": "exhausted"},
    ]


def told(page: Json) -> dict[str, str]:
    """Engine -> why it was not asked, or its status."""
    return {engine["id"]: engine.get("reason", engine["status"]) for engine in page["_meta"]["x-gateway"]["engines"]}


class ScriptedEngines:
    """Engines with these documents, for as long as a block runs."""

    def __init__(self, **corpora: range) -> None:
        self._engines = [ScriptedEngine(capabilities={"retrieve": {"maxK": 100}}) for _ in corpora]
        for engine, known in zip(self._engines, corpora.values(), strict=True):
            engine.answers["retrieve"] = documents(*known)

    async def __aenter__(self) -> list[ScriptedEngine]:
        return [await engine.start() for engine in self._engines]

    async def __aexit__(self, *_: object) -> None:
        for engine in self._engines:
            await engine.stop()
