"""The standard library as documents, shared by the engines `stdlib` and `concepts`, so that their ids agree."""

import sys

from app.demo.builtin_docstrings import read_compiled
from app.demo.corpus import Entry, read_source, settle, source_files, stdlib_root
from app.demo.demo_document import DemoDocument, words_of_name
from app.demo.rcp_server import say

SOURCE = f"Python {sys.version_info.major}.{sys.version_info.minor} standard library"


def read_library(engine: str) -> list[DemoDocument]:
    """Every documented name of this interpreter's standard library, by id; progress is reported as `engine`.

    Takes some seconds of CPU. Exits with a sentence if the interpreter came without the source of its library.
    """
    root = stdlib_root()
    files = source_files(root) if root.is_dir() else []
    if not files:
        sys.exit(f"{engine}: this Python came without its library's source (looked in {root})")
    say(engine, f"reading the docstrings of {len(files)} modules")
    return [document_of(entry) for entry in settle([*read_source(files), *read_compiled()])]


def document_of(entry: Entry) -> DemoDocument:
    """An entry made findable and citable."""
    meta = {"module": entry.module, "kind": entry.kind}
    return DemoDocument(
        id=entry.id,
        names=words_of_name(entry.id),
        text=entry.text,
        citation={"source": SOURCE, "uri": entry.uri, "title": entry.title},
        meta=meta | {"signature": entry.signature} if entry.signature else meta,
    )
