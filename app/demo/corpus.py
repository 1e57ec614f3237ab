"""The text of the demo: docstrings of the standard library, read from its source with `ast` without importing it."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

MAX_TEXT = 2000
"""Characters kept of one docstring."""
MAX_ENTRIES = 12_000
MAX_SIGNATURE = 160

_SKIPPED = (
    "__phello__ __pycache__ antigravity distutils encodings ensurepip idle_test idlelib lib2to3 ntpath nturl2path "
    "pydoc_data site-packages dist-packages test tests this turtledemo"
)
SKIPPED = frozenset(_SKIPPED.split())
"""Directories and modules that would only add noise: tests, tables, vendored and retired code."""

PUBLIC_NAMES = {
    "_collections_abc": "collections.abc",
    "_pydatetime": "datetime",
    "_pydecimal": "decimal",
    "_pyio": "io",
    "concurrent.futures._base": "concurrent.futures",
    "pathlib._local": "pathlib",
    "posixpath": "os.path",
    "zipfile._path": "zipfile",
}
"""Source files under a private name whose contents everybody knows by a public one."""

_PAGES = (
    "collections.abc concurrent.futures curses.ascii curses.panel email.charset email.errors email.generator "
    "email.header email.headerregistry email.message email.mime email.parser email.policy email.utils html.entities "
    "html.parser http.client http.cookiejar http.cookies http.server importlib.metadata importlib.resources "
    "importlib.resources.abc json logging.config logging.handlers multiprocessing.shared_memory os.path tkinter.dnd "
    "tkinter.font tkinter.messagebox tkinter.scrolledtext tkinter.ttk unittest.mock urllib.error urllib.parse "
    "urllib.request urllib.robotparser wsgiref xml.dom xml.dom.minidom xml.dom.pulldom xml.etree.ElementTree xml.sax "
    "xml.sax.handler xml.sax.saxutils xmlrpc.client xmlrpc.server"
)
PAGES = frozenset(_PAGES.split())
"""Submodules with a page of their own in the library reference; others are described on their package's page."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented name. `id` is its dotted path; `kind` is module, class or function (methods included)."""

    id: str
    kind: str
    module: str
    text: str
    signature: str = ""

    @property
    def title(self) -> str:
        """How a list names it: `json.dumps()`, `class json.JSONDecoder`, `module json`."""
        return f"{self.id}()" if self.kind == "function" else f"{self.kind} {self.id}"

    @property
    def uri(self) -> str:
        """Where the library reference would describe it. Text for a citation; nobody here fetches it."""
        if self.module == "builtins":
            return f"{REFERENCE}/{self._builtin_page}.html#{self.id}"
        module = self.module
        while module not in PAGES and "." in module:
            module = module.rpartition(".")[0]
        anchor = f"#{self.id}" if module == self.module and self.kind != "module" else ""
        return f"{REFERENCE}/{module.lower()}.html{anchor}"

    @property
    def _builtin_page(self) -> str:
        if self.id.endswith(("Error", "Exception", "Exit", "Group", "Interrupt", "Iteration", "Warning")):
            return "exceptions"
        return "functions" if self.kind == "function" and "." not in self.id else "stdtypes"


REFERENCE = f"https://docs.python.org/{sys.version_info.major}.{sys.version_info.minor}/library"


def stdlib_root() -> Path:
    """Where this interpreter keeps the source of its standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[tuple[str, Path]]:
    """The public modules below `root` as (dotted name, file), in the order of their names."""
    found: list[tuple[str, Path]] = []
    folders = [root]
    while folders:
        for path in folders.pop().iterdir():
            if path.name in SKIPPED or path.stem in SKIPPED:
                continue
            if path.suffix == ".py":
                found.append((_dotted(path.relative_to(root)), path))
            elif path.name.isidentifier() and (path / "__init__.py").is_file():
                folders.append(path)
    public = ((PUBLIC_NAMES.get(name, name), path) for name, path in found)
    return sorted((name, path) for name, path in public if not any(part.startswith("_") for part in name.split(".")))


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def read_source(files: Iterable[tuple[str, Path]]) -> Iterator[Entry]:
    """Every documented public name in `files`.

    A file that cannot be read or parsed is passed over: one odd file must not cost the others.
    """
    for module, path in files:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        if text := _doc(tree):
            yield Entry(module, "module", module, text)
        yield from _definitions(tree.body, module, module)


def settle(entries: Iterable[Entry]) -> list[Entry]:
    """`entries` sorted by id, each id once: of two the longer text is kept. At most MAX_ENTRIES."""
    best: dict[str, Entry] = {}
    for entry in entries:
        known = best.get(entry.id)
        if known is None or len(entry.text) > len(known.text):
            best[entry.id] = entry
    return [best[entry_id] for entry_id in sorted(best)][:MAX_ENTRIES]


def _definitions(body: list[ast.stmt], prefix: str, module: str) -> Iterator[Entry]:
    """The documented definitions in `body`, those of nested classes and of conditional blocks included."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions([*node.body, *node.orelse], prefix, module)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            text = _doc(node)
            is_class = isinstance(node, ast.ClassDef)
            if text:
                yield Entry(name, "class" if is_class else "function", module, text, _signature(node))
            if is_class:
                yield from _definitions(node.body, name, module)


def _doc(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node, clean=False)
    return clip(cleandoc(text)) if text else ""


def _signature(node: ast.stmt) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    text = f"{node.name}({ast.unparse(node.args)})"
    return text if len(text) <= MAX_SIGNATURE else text[: MAX_SIGNATURE - 1] + "…"


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """`text` cut at a space so that it has at most `limit` characters."""
    text = text.strip()
    return text if len(text) <= limit else text[: limit - 1].rsplit(None, 1)[0] + "…"
