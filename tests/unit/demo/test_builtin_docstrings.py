"""The docstrings of what is built in."""

from app.demo.builtin_docstrings import read_compiled
from app.demo.corpus import Entry


def by_id() -> dict[str, Entry]:
    return {entry.id: entry for entry in read_compiled()}


def test_builtins_go_by_their_bare_names() -> None:
    """Functions, types and their methods are there under the names that programs use."""
    entries = by_id()
    assert entries["sorted"].kind == "function"
    assert entries["list"].kind == "class"
    assert entries["list.sort"].kind == "function"
    assert entries["dict.fromkeys"].kind == "function"
    assert {entries[name].module for name in ("sorted", "list", "list.sort")} == {"builtins"}


def test_modules_written_in_c_are_read() -> None:
    """What has no source file is documented all the same."""
    entries = by_id()
    assert entries["math"].kind == "module"
    assert "float" in entries["math.sqrt"].text or "square root" in entries["math.sqrt"].text
    assert entries["itertools.chain.from_iterable"].module == "itertools"
    assert "strptime" in entries["time.strptime"].text


def test_signatures_are_those_a_caller_writes() -> None:
    """The interpreter's own marks for the module and the instance are left out."""
    entries = by_id()
    assert entries["abs"].signature == "abs(x, /)"
    assert entries["list.count"].signature == "count(value, /)"
    assert entries["list.reverse"].signature == "reverse()"
    assert not any("$" in entry.signature for entry in entries.values())


def test_what_is_not_the_languages_own_is_left_out() -> None:
    """Neither the prompt's helpers, nor aliases, nor constants, nor special methods."""
    assert not {"exit", "license", "copyright", "IOError", "EnvironmentError", "True", "math.pi"} & by_id().keys()
    assert not any(part.startswith("_") for name in by_id() for part in name.split("."))
