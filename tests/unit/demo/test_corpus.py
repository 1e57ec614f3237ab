"""What counts as an entry of the standard library, and what it is called."""

from pathlib import Path

import pytest

from app.demo.corpus import MAX_TEXT, Entry, clip, read_source, settle, source_files, stdlib_root

SOURCE = '''"""About times."""
import nothing_that_exists

class Clock:
    """Tells the time."""
    def tick(self, by: int = 1) -> None:
        """Move on."""
    def _oil(self): "private"
    def __len__(self): "special"
    def bare(self): pass

try:
    async def wait(seconds): "Wait a while."
except ImportError:
    pass
else:
    if True:
        def hurry(): "Do not wait."
'''


def written(folder: Path, name: str, source: str) -> tuple[str, Path]:
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    return name, path


def test_documented_public_names_become_entries(tmp_path: Path) -> None:
    """Modules, classes, methods and functions, also inside conditions, and nothing private or undocumented."""
    entries = settle(read_source([written(tmp_path, "clocks", SOURCE)]))
    assert [(entry.id, entry.kind, entry.signature) for entry in entries] == [
        ("clocks", "module", ""),
        ("clocks.Clock", "class", ""),
        ("clocks.Clock.tick", "function", "tick(self, by: int=1)"),
        ("clocks.hurry", "function", "hurry()"),
        ("clocks.wait", "function", "wait(seconds)"),
    ]
    assert {entry.module for entry in entries} == {"clocks"}


def test_nothing_is_imported(tmp_path: Path) -> None:
    """A module is read without being run: one that would raise gives its entries all the same."""
    entries = settle(read_source([written(tmp_path, "trap", '"""A trap."""\nraise SystemExit')]))
    assert [entry.id for entry in entries] == ["trap"]


def test_one_odd_file_does_not_cost_the_others(tmp_path: Path) -> None:
    """A file that is no Python, holds a null byte or is gone is passed over."""
    odd = [written(tmp_path, "wrong", "def ("), written(tmp_path, "null", "\0"), ("gone", tmp_path / "gone.py")]
    entries = settle(read_source([*odd, written(tmp_path, "good", '"""Good."""')]))
    assert [entry.id for entry in entries] == ["good"]


def test_of_two_with_one_id_the_longer_text_is_kept() -> None:
    """A name that is defined twice is one entry, whichever came first."""
    short, long = (Entry("a", "module", "a", text) for text in ("short", "rather long"))
    assert settle([short, long]) == settle([long, short]) == [long]


def test_the_layout_of_the_library_is_understood(tmp_path: Path) -> None:
    """Packages are walked, tests and private modules are not, and some files go by their public name."""
    for name in (
        "json/__init__.py",
        "json/decoder.py",
        "json/_private.py",
        "_pydatetime.py",
        "_thread.py",
        "test/x.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "config-3").mkdir()
    (tmp_path / "config-3" / "setup.py").touch()
    (tmp_path / "no_package").mkdir()
    (tmp_path / "no_package" / "x.py").touch()
    assert [name for name, _ in source_files(tmp_path)] == ["datetime", "json", "json.decoder"]


def test_this_interpreters_library_is_worth_searching() -> None:
    """The library of the running interpreter has hundreds of public modules, json and pathlib among them."""
    names = {name for name, _ in source_files(stdlib_root())}
    assert len(names) > 200
    assert names > {"json", "json.decoder", "os.path", "argparse"}
    assert not any(part.startswith("_") or part == "test" for name in names for part in name.split("."))


@pytest.mark.parametrize(
    ("entry", "page"),
    [
        (Entry("json.dumps", "function", "json", ""), "json.html#json.dumps"),
        (Entry("json", "module", "json", ""), "json.html"),
        (Entry("asyncio.tasks.wait", "function", "asyncio.tasks", ""), "asyncio.html"),
        (Entry("os.path.join", "function", "os.path", ""), "os.path.html#os.path.join"),
        (Entry("xml.etree.ElementTree.parse", "function", "xml.etree.ElementTree", ""), "xml.etree.elementtree.html#"),
        (Entry("len", "function", "builtins", ""), "functions.html#len"),
        (Entry("str.split", "function", "builtins", ""), "stdtypes.html#str.split"),
        (Entry("OSError", "class", "builtins", ""), "exceptions.html#OSError"),
    ],
)
def test_an_entry_is_cited_where_the_reference_would_describe_it(entry: Entry, page: str) -> None:
    """A submodule without a page of its own is cited by its package's page, without an anchor."""
    assert entry.uri.startswith("https://docs.python.org/3.")
    assert f"/library/{page}" in entry.uri
    assert entry.uri.endswith(page) or page.endswith("#")


def test_titles_say_what_kind_of_thing_it_is() -> None:
    """A function is called, a class and a module say that they are one."""
    titles = [Entry("a.b", kind, "a", "").title for kind in ("function", "class", "module")]
    assert titles == ["a.b()", "class a.b", "module a.b"]


def test_a_long_text_is_cut_at_a_space() -> None:
    """No more than the limit is kept, and no half word."""
    assert clip("  short  ") == "short"
    cut = clip("word " * MAX_TEXT)
    assert len(cut) <= MAX_TEXT
    assert cut.endswith("word…")
