"""The documents agree with the code: keys and defaults, commands, blocks of data, links, and the worked example."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from app.__main__ import load
from app.api.reload import AT_START, SECTIONS_AT_START
from app.settings.reference import DOCUMENTS
from app.settings.schema import GatewaySettings, Registry
from docs._generate import made
from tests.support.corpora import corpus as documents
from tests.support.corpora import ids, pages_of
from tests.support.running_gateway import entry, running
from tests.support.scripted_engine import ScriptedEngine

PROJECT = Path(__file__).parents[1]
DOCS = sorted((PROJECT / "docs").rglob("*.md"))
PAGES = [*DOCS, *sorted(PROJECT.glob("*.md"))]
INDEX = PROJECT / "docs" / "README.md"
KEYS = ("docs/reference/registry.md", "docs/reference/settings.md")

Json = dict[str, Any]


def name_of(page: Path) -> str:
    """The path of a page in the project."""
    return page.relative_to(PROJECT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_tables_of_keys_are_those_of_the_models() -> None:
    """The reference has every key and setting with its type, default and meaning, as `make docs` writes them."""
    texts = {page: (PROJECT / page).read_text(encoding="utf-8") for page in KEYS}
    assert re.findall(r"made by `make docs`: (\w+)", "".join(texts.values())) == list(DOCUMENTS)
    for page, text in texts.items():
        assert made()[page] == text, "run: make docs"


def test_what_waits_for_a_restart_is_listed() -> None:
    """docs/explanation/resilience.md names every setting that is read only at start, and no other; each exists."""
    page = (PROJECT / "docs" / "explanation" / "resilience.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^These settings are read only at start: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", listed)) == AT_START | SECTIONS_AT_START
    sections = GatewaySettings.model_fields
    known = {
        f"{section}.{key}" for section in sections for key in type(getattr(GatewaySettings(), section)).model_fields
    }
    assert known >= AT_START
    assert sections.keys() >= SECTIONS_AT_START


def test_example_files_are_valid() -> None:
    """The files shown in the reference of keys are a registry and settings."""
    registry = next(block for block in blocks(PROJECT / KEYS[0], "json") if "engines" in block)
    assert Registry.model_validate_json(registry).engines
    shown = [block for page in KEYS for block in blocks(PROJECT / page, "yaml")]
    assert shown
    for settings in shown:
        assert GatewaySettings.model_validate(yaml.safe_load(settings))


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_blocks_of_data_are_data(page: Path) -> None:
    """Each JSON block is one value, or one per line; each YAML block can be parsed."""
    for block in blocks(page, "json"):
        try:
            json.loads(block)
        except ValueError:
            assert all(json.loads(line) is not None for line in block.splitlines())
    for block in blocks(page, "ya?ml"):
        assert yaml.safe_load(block) is not None


def commands(page: Path) -> list[str]:
    """Every command on the page: lines of shell blocks with continued lines joined, and lines after a prompt."""
    text = page.read_text(encoding="utf-8")
    shell = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()] + re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)


def options_of(words: list[str]) -> tuple[str, set[str]]:
    """The rcp-gateway command that these words name, and its options."""
    command: Any = get_command(load())
    names = []
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return "", set()
        command = command.commands[words[0]]
        names.append(words.pop(0))
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return " ".join(names), known | {"--help", "--version"}


def faults_in(command: str) -> list[str]:
    """Errors of a command line that calls rcp-gateway: an unknown command or option."""
    found = []
    for call in re.findall(r"(?:^|[\s/])rcp-gateway ((?!.*rcp-gateway )[a-z].*?)(?=[|>;&]|$)", command):
        name, known = options_of(words := call.partition(" -- ")[0].split())
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
        found += [f"{name}: no {option}" for option in unknown] if name else [f"no command {call}"]
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_valid(page: Path) -> None:
    """The shell can parse each command; calls of rcp-gateway name existing commands and options."""
    for command in commands(page):
        if "…" in command:  # shortened for reading
            continue
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or "unexpected EOF" in done.stderr or "here-document" in done.stderr, command
        if not command.startswith(("docker ", "kubectl ", "helm ")):
            assert faults_in(command) == [], command


@pytest.mark.parametrize(
    "command", ["rcp-gateway chekc", "x | .venv/bin/rcp-gateway check --conect", "rcp-gateway key nwe"]
)
def test_a_misspelt_command_is_found(command: str) -> None:
    """A misspelt command or option in a page is found."""
    assert faults_in(command) != []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    """Every path of deploy/ and config/ and every make target that a page names exists."""
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"(?<![\w/.-])((?:deploy|config)/[\w./-]*\w)", re.sub(r"/(?:srv|etc)/\S+", "", text)):
        assert (PROJECT / path).exists() or path in EXAMPLES, path
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    typed = [command.split()[1] for command in commands(page) if command.startswith("make ")]
    for target in re.findall(r"`make ([a-z]+)", text) + typed:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


EXAMPLES = {"config/tenants.yaml"}
"""Files that readers create themselves."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_are_flow_charts(page: Path) -> None:
    """Each picture is a diagram that GitHub renders, with closed subgraphs."""
    for picture in blocks(page, "mermaid"):
        assert picture.startswith(("flowchart ", "sequenceDiagram", "stateDiagram"))
        opened, closed = (len(re.findall(word, picture, re.MULTILINE)) for word in (r"^\s*subgraph ", r"^\s*end$"))
        assert opened == closed


def without_code(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names under which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file, and a heading in it if it names one."""
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", without_code(page)):
        if re.match(r"[a-z]+:", path):
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_the_tests_that_hold_a_promise_are_there() -> None:
    """Every test that docs/explanation/security.md names exists exactly once; each promise names at least one."""
    page = (PROJECT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    section = page.split("## Promises and their tests", 1)[1].split("\n## ", 1)[0]
    sources = [path.read_text(encoding="utf-8") for path in (PROJECT / "tests").rglob("test_*.py")]
    defined = [name for text in sources for name in re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)]
    promises = [row for row in section.splitlines() if row.startswith("| **")]
    assert len(promises) > 15
    for promise in promises:
        named = re.findall(r"`(test_\w+)`", promise)
        assert named, promise
        for name in named:
            assert defined.count(name) == 1, name


def test_the_index_names_every_document() -> None:
    """docs/README.md links to each page, and the README to that index."""
    index = INDEX.read_text(encoding="utf-8")
    for page in DOCS:
        if page != INDEX:
            assert f"({page.relative_to(INDEX.parent).as_posix()})" in index, page
    assert "(docs/README.md)" in (PROJECT / "README.md").read_text(encoding="utf-8")


async def test_the_three_pages_are_as_described() -> None:
    """The three pages of docs/explanation/architecture.md: engine calls, hits and skip reasons are as described."""
    async with ScriptedEngines(docs=range(24), code=range(100, 106)) as (docs, code):
        async with running([entry("docs", docs), entry("code", code)]) as gateway:
            pages = await pages_of(gateway, (10,))
        assert [len(page["hits"]) for page in pages] == [10, 10, 10]
        assert set(ids(*pages)) == {*range(24), *range(100, 106)}
        assert [request.params["k"] for request in docs.requests()] == [20, 40]
        assert [request.params["k"] for request in code.requests()] == [20]
    assert [reasons(page) for page in pages] == [
        {"docs": "ok", "code": "ok"},
        {"docs": "kept", "code": "kept"},
        {"docs": "ok", "code": "exhausted"},
    ]


def reasons(page: Json) -> dict[str, str]:
    """Engine id -> its skip reason, or its status."""
    return {engine["id"]: engine.get("reason", engine["status"]) for engine in page["_meta"]["x-gateway"]["engines"]}


class ScriptedEngines:
    """Engines with these documents, started and stopped with the block."""

    def __init__(self, **corpora: range) -> None:
        self._engines = [ScriptedEngine(capabilities={"retrieve": {"maxK": 100}}) for _ in corpora]
        for engine, known in zip(self._engines, corpora.values(), strict=True):
            engine.answers["retrieve"] = documents(*known)

    async def __aenter__(self) -> list[ScriptedEngine]:
        return [await engine.start() for engine in self._engines]

    async def __aexit__(self, *_: object) -> None:
        for engine in self._engines:
            await engine.stop()
