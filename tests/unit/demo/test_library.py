"""The standard library as documents."""

from pathlib import Path

import pytest

from app.demo import library
from app.demo.corpus import Entry


def test_an_entry_becomes_findable_and_citable() -> None:
    """Its name is parted into words; module, kind and signature are kept."""
    document = library.document_of(Entry("json.JSONDecoder", "class", "json", "Simple decoder.", ""))
    assert document.names.split() == ["json", "JSONDecoder", "JSON", "Decoder"]
    assert document.meta == {"module": "json", "kind": "class"}
    assert document.citation["title"] == "class json.JSONDecoder"
    assert document.citation["source"].endswith("standard library")
    function = library.document_of(Entry("json.dumps", "function", "json", "Serialize.", "dumps(obj)"))
    assert function.meta["signature"] == "dumps(obj)"


def test_the_library_is_read_from_source_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source files and compiled modules together, in the order of their ids, with a line of progress on stderr."""
    (tmp_path / "wonders.py").write_text('"""Seven of them."""', encoding="utf-8")
    monkeypatch.setattr(library, "stdlib_root", lambda: tmp_path)
    ids = [document.id for document in library.read_library("engine")]
    assert ids == sorted(ids)
    assert {"wonders", "list.sort"} <= set(ids)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "engine: reading the docstrings of 1 modules\n")


def test_a_python_without_source_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that came without its library's source cannot be a demo, and says so in a sentence."""
    monkeypatch.setattr(library, "stdlib_root", lambda: tmp_path / "nowhere")
    with pytest.raises(SystemExit, match="engine: this Python came without"):
        library.read_library("engine")
