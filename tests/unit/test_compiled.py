"""Compiled rooms: used only where every source is what was compiled, all of them or none; edited sources always run."""

import ast
import importlib
import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from app import compiled

ADOPTS = """
import sys
from functools import partial
from pathlib import Path
from app import compiled

{first}
print(compiled.adopt(Path(sys.argv[1])))
import app.fusion.merge
print(compiled.in_use(), app.fusion.__path__[0])
"""


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A folder labelled as made from these sources; it holds no module."""
    (tmp_path / compiled.MANIFEST).write_text(compiled.manifest())
    return tmp_path


def adopting(folder: Path, first: str = "") -> list[str]:
    """What a fresh process says of `folder`."""
    command = [sys.executable, "-c", ADOPTS.format(first=first), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_every_compiled_module_is_there() -> None:
    """The list names modules that exist, each once."""
    assert len(set(compiled.MODULES)) == len(compiled.MODULES)
    for name in compiled.MODULES:
        assert importlib.util.find_spec(f"app.{name}") is not None


def sources() -> dict[str, ast.Module]:
    """The compiled modules, parsed."""
    package = Path(compiled.__file__).parent
    return {name: ast.parse((package / f"{name.replace('.', '/')}.py").read_text()) for name in compiled.MODULES}


def test_no_set_passes_for_a_frozenset() -> None:
    """`frozenset | dict.keys()` is a set to Python and a frozenset to mypy: compiled, a TypeError. Use `union`."""
    found = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp):
                sides = [side.func for side in (node.left, node.right) if isinstance(side, ast.Call)]
                if any(isinstance(call, ast.Attribute) and call.attr == "keys" for call in sides):
                    found.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_no_handler_awaits() -> None:
    """Compiled, an exception that is being handled while others run is found by them, and raised where nothing went
    wrong: what has to be awaited after a fault is awaited behind the handler, and never in a `finally`."""
    found = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            handled = node.body if isinstance(node, ast.ExceptHandler) else []
            handled = [*handled, *node.finalbody] if isinstance(node, ast.Try) else handled
            found += [f"{name}:{at.lineno}" for part in handled for at in ast.walk(part) if isinstance(at, ast.Await)]
            found += [f"{name}:{node.lineno}"] if isinstance(node, ast.AsyncWith) else []  # its exit is such a handler
    assert found == []


def test_what_is_caught_has_one_name_for_each_type() -> None:
    """Compiled, a name has one type: a fault of another class caught under it is a TypeError."""
    found = []
    for name, tree in sources().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                caught: dict[str, str] = {}
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
                        kind = ast.unparse(node.type)
                        if caught.setdefault(node.name, kind) != kind:
                            found.append(f"{name}:{node.lineno} {node.name}: {caught[node.name]}, {kind}")
    assert found == []


def test_where_nothing_is_compiled_sources_run(tmp_path: Path) -> None:
    """Without a manifest there is nothing to use, and the process says why."""
    reason, state = adopting(tmp_path / "nowhere")
    assert reason == "nothing is compiled"
    assert state.startswith("False ")


def test_the_label_depends_on_every_byte(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that changed by a byte, or another Python, makes everything compiled unusable."""
    assert compiled.reason_against(ready) is None
    label = json.loads(compiled.manifest())
    label["sources"][compiled.MODULES[3]] = "0" * 64
    (ready / compiled.MANIFEST).write_text(json.dumps(label))
    assert compiled.reason_against(ready) == "the sources are not what was compiled"
    (ready / compiled.MANIFEST).write_text(compiled.manifest())
    monkeypatch.setattr(compiled, "EXTENSION_SUFFIXES", [".cpython-399-x86_64-linux-gnu.so"])
    assert compiled.reason_against(ready) == "the sources are not what was compiled"


def test_fingerprints_tell_one_edit(tmp_path: Path) -> None:
    """One more blank line in one file changes the fingerprint of that module alone."""
    for name in compiled.MODULES:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    before = compiled.fingerprints(tmp_path)
    (tmp_path / "fusion/merge.py").write_text("x = 1\n\n")
    after = compiled.fingerprints(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"fusion.merge"}


def test_all_or_none(ready: Path) -> None:
    """Once a source is in use, compiled modules stay out: the two kinds of one class must never meet."""
    reason, state = adopting(ready, first="import app.fusion.ranked_lists")
    assert reason == "the sources are in use already"
    assert str(ready) not in state


def test_compiled_modules_come_first(ready: Path) -> None:
    """What is adopted is looked for before the sources; what is not there is still found among them."""
    reason, state = adopting(ready)
    assert reason == "None"
    assert state == f"False {ready / 'app' / 'fusion'}"


def test_whoever_wishes_runs_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable keeps compiled modules out; empty or unset it says nothing."""
    adoptions: list[None] = []
    monkeypatch.setattr(compiled, "adopt", lambda: adoptions.append(None))
    for value, expected in [("1", 0), ("", 1)]:
        monkeypatch.setenv(compiled.INTERPRETED_VARIABLE, value)
        compiled.choose()
        assert len(adoptions) == expected


def test_another_process_chooses_before_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker is given travels by name, and brings no compiled module along; called, it does its work."""
    work = pickle.loads(pickle.dumps(partial(compiled.call, "json", "dumps")))
    monkeypatch.setenv(compiled.INTERPRETED_VARIABLE, "1")
    assert work([1]) == "[1]"
    script = "import pickle, sys; from app import compiled, api; import app.server.workers, app.settings.sources\n"
    script += "print([name for name in sys.modules if name.removeprefix('app.') in compiled.MODULES])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
