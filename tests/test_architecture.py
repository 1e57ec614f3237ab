"""The house rules, read off the source: who may import whom, what is pure, and how long, named and told things are."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

APP = Path(__file__).parent.parent / "app"

LAYERS = (
    {"__main__"},
    {"cli"},
    {"main"},
    {"server"},
    {"mcp"},
    {"api"},
    {"evaluation"},
    {"federation"},
    {"engines", "fusion", "state"},
    {"protocol", "resilience", "settings", "telemetry"},
)
"""A package imports only from layers below its own; packages of one layer do not import each other."""

APART = {"demo": {"demo"}, "conformance": {"conformance"}}
"""Rooms outside the rows, and what of ours they may import: neither the demo's engines nor the checks of other servers
know the gateway."""

LAUNCHERS = {"__main__", "cli"}
"""The only rooms that may import a room outside the rows."""

LIBRARIES = {
    "fastapi": {"main", "api"},
    "starlette": {"main", "api", "mcp/http"},
    "uvicorn": {"main", "server"},
    "uvloop": {"main"},
    "httptools": {"engines", "server"},
    "h2": {"engines/http/http2_connection"},
    "httpx2": {"cli", "conformance/http_peer", "api/auth/jwks", "api/source_requests"},
    "joserfc": {"api/auth/jwks", "api/auth/jwt"},
    "redis": {"state/redis"},
    "tenacity": {"resilience"},
    "mcp": set(),
    "orjson": {"protocol"},
    "pydantic": {"settings", "protocol/retrieve_params", "protocol/fuse_params", "mcp/tool_arguments"},
    "pydantic_core": {"settings"},
    "yaml": {"settings"},
    "prometheus_client": {"telemetry"},
    "structlog": {"telemetry"},
    "opentelemetry": {"telemetry/tracing", "telemetry/span_export"},
    "typer": {"cli", "__main__"},
    "click": {"cli", "__main__"},
    "rich": {"cli", "__main__"},
    "rcp": {"demo"},
    "sklearn": {"demo"},
    "numpy": {"demo"},
    "threadpoolctl": {"demo"},
    "sqlite3": {"demo"},
    "ir_measures": {"evaluation"},
    "scipy": {"evaluation"},
}
"""One library, one room (or one file of it)."""

PURE = ("protocol/", "fusion/", "federation/planner", "federation/outcome", "resilience/deadline", "resilience/breaker")
IMPURE = {"asyncio", "time", "random", "logging", "structlog", "prometheus_client", "secrets", "threading"}

EDGES = {
    "federation/fanout",
    "engines/health",
    "api/dispatch",
    "cli/failures",
    "mcp/server",
    "conformance/examination",
    "state/redis",
    "server/request_response",
    "__main__",
}
"""Where whatever went wrong is caught: a leg, a request, a command, a check, what is asked of the shared state."""

DRAWN = {"protocol/errors", "resilience/breaker"}
"""Modules whose docstring draws a picture and may be longer than six lines."""

MAX_FILE = 510
MAX_FUNCTION = 60


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the app by its path without `.py`, parsed."""
    return {
        path.relative_to(APP).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(APP.rglob("*.py"))
    }


def package_of(module: str) -> str:
    return module.partition("/")[0]


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of everything imported, also inside functions; `from a import b` counts as both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node.module or "", node.lineno
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def nothing(violations: list[str]) -> None:
    assert not violations, "\n" + "\n".join(violations)


def may_import(room: str, other: str) -> bool:
    if room == other:
        return True
    if room in APART:
        return other in APART[room]
    if other in APART:
        return room in LAUNCHERS
    row = {name: index for index, names in enumerate(LAYERS) for name in names}
    return row[room] < row[other]


def test_every_package_is_known() -> None:
    """No room appears that the dependency rule does not speak of."""
    known = set().union(*LAYERS, APART, {"__init__"})
    nothing([module for module in modules() if package_of(module) not in known])


def test_packages_import_only_what_is_below_them() -> None:
    """A room imports only from rows below its own: leaves import nothing of ours, engines and fusion not each other."""
    nothing(
        [
            f"{module}:{line} imports {name}"
            for module, tree in modules().items()
            for name, line in imports(tree)
            if name.startswith("app.") and not may_import(package_of(module), name.split(".")[1])
        ]
    )


def test_one_library_has_one_package() -> None:
    """Each library is known to one room; a library that nobody declared is in none."""
    violations = []
    for module, tree in modules().items():
        for name in {name.partition(".")[0] for name, _ in imports(tree)}:
            if name == "app" or (name in sys.stdlib_module_names and name not in LIBRARIES):
                continue
            if not {package_of(module), module} & LIBRARIES.get(name, set()):
                violations.append(f"{module} imports {name}")
    nothing(violations)


def test_package_files_are_empty() -> None:
    """`__init__.py` files are empty: one thing has one address."""
    nothing([module for module, tree in modules().items() if module.endswith("__init__") and tree.body])


def test_pure_modules_neither_wait_nor_look_at_the_world() -> None:
    """What is pure by rule has no await, no clock, no chance, no log and no metric."""
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    violations = []
    for module, tree in modules().items():
        if module.startswith(PURE):
            violations += [f"{module}:{line} imports {name}" for name, line in imports(tree) if name in IMPURE]
            violations += [f"{module}:{node.lineno} waits" for node in ast.walk(tree) if isinstance(node, waiting)]
    nothing(violations)


def test_modules_introduce_themselves() -> None:
    """Every module has a docstring of one to six lines."""
    violations = []
    for module, tree in modules().items():
        lines = len((ast.get_docstring(tree) or "").splitlines())
        if tree.body and module not in DRAWN and not 1 <= lines <= 6:
            violations.append(f"{module}: {lines} lines")
    nothing(violations)


def test_files_are_short() -> None:
    """No file is over 500 lines, and half of them are under 120."""
    lengths = {
        module: len((APP / f"{module}.py").read_text(encoding="utf-8").splitlines())
        for module, tree in modules().items()
        if tree.body
    }
    nothing([f"{module}: {length} lines" for module, length in lengths.items() if length > MAX_FILE])


def test_functions_are_short() -> None:
    """No function is over 60 lines, and half of them are under 10."""
    nothing([f"{module}:{node.lineno} {node.name}" for module, node in functions() if lines_of(node) > MAX_FUNCTION])
    assert median(lines_of(node) for _, node in functions()) < 10


SHARED_NAMES = {"stdio", "mcp", "http", "server", "metrics", "conformance", "schema", "engines"}
"""File names that the layout gives to several packages: a transport or a command is named after what it speaks."""


def test_names_are_unique() -> None:
    """No two modules and no two classes share a name."""
    found: dict[str, list[str]] = {}
    for module in modules():
        name = Path(module).name
        if name not in {"__init__"} | SHARED_NAMES:
            found.setdefault(name, []).append(module)
    for module, node in classes():
        found.setdefault(node.name, []).append(f"{module}:{node.lineno}")
    nothing([f"{name}: {', '.join(places)}" for name, places in found.items() if len(places) > 1])


def importers() -> dict[str, set[str]]:
    """Module -> the modules that import it."""
    found: dict[str, set[str]] = {module: set() for module in modules()}
    for module, tree in modules().items():
        for name, _ in imports(tree):
            imported = name.removeprefix("app.").replace(".", "/")
            if name.startswith("app.") and imported in found:
                found[imported].add(module)
    return found


def test_small_modules_have_a_reason() -> None:
    """A module of fewer than 60 lines with a single importer says in its docstring why it stands apart."""
    violations = []
    for module, users in importers().items():
        lines = len((APP / f"{module}.py").read_text(encoding="utf-8").splitlines())
        if lines < 60 and len(users) == 1 and "Separate" not in (ast.get_docstring(modules()[module]) or ""):
            violations.append(f"{module}: {lines} lines, imported by {', '.join(users)} alone")
    nothing(violations)


def changes_itself(node: ast.ClassDef) -> bool:
    """Whether a method other than `__init__` and `__post_init__` sets an attribute of its own instance."""
    methods = [member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self"
        for method in methods
        if not method.name.endswith("init__")
        for inner in ast.walk(method)
    )


def test_values_are_frozen() -> None:
    """Every dataclass is slotted, and frozen unless it is there to change."""
    violations = []
    for module, node in classes():
        for decorator in map(ast.unparse, node.decorator_list):
            if decorator.partition("(")[0] == "dataclass":
                frozen = "frozen=True" in decorator or changes_itself(node)
                if not frozen or "slots=True" not in decorator:
                    violations.append(f"{module}:{node.lineno} {node.name}")
    nothing(violations)


def test_what_changes_can_be_looked_at() -> None:
    """Every class whose instances change has a `__repr__` for an incident; a dataclass has one of its own."""
    violations = []
    for module, node in classes():
        has_repr = any(isinstance(member, ast.FunctionDef) and member.name == "__repr__" for member in node.body)
        if changes_itself(node) and not has_repr and not node.decorator_list and not node.name.startswith("_"):
            violations.append(f"{module}:{node.lineno} {node.name}")
    nothing(violations)


def test_everything_is_caught_only_at_the_edges() -> None:
    """`except Exception` and wider stand only where a leg, a request or a command ends, or where they raise again."""
    violations = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and module not in EDGES:
                caught = "" if node.type is None else ast.unparse(node.type)
                wide = node.type is None or re.search(r"\b(Base)?Exception\b", caught)
                last = node.body[-1]
                if wide and not (isinstance(last, ast.Raise) and last.exc is None):
                    violations.append(f"{module}:{node.lineno} except {caught}")
    nothing(violations)


def _own_private_names() -> set[str]:
    """Names with a leading underscore that this code defines itself."""
    names = {"_replace", "_asdict", "_fields", "_make", "_exit"}  # public API of the standard library
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def private_names_of_libraries(tree: ast.Module, own: set[str]) -> Iterator[tuple[str, int]]:
    """(name, line) of every private name that is read, set or imported and is not defined by this code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, of_self = node.attr, isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if name.startswith("_") and not name.startswith("__") and not of_self and name not in own:
                yield name, node.lineno
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("app"):
            yield from ((one.name, node.lineno) for one in node.names if one.name.startswith("_"))


def test_only_public_names_of_libraries_are_used() -> None:
    """No attribute with a leading underscore of an object that is not ours."""
    own = _own_private_names()
    nothing(
        [
            f"{module}:{line} {name}"
            for module, tree in modules().items()
            for name, line in private_names_of_libraries(tree, own)
        ]
    )
    bad = ast.parse("transport._pool._network_backend = dialler\nfrom anyio import _core")
    assert [name for name, _ in private_names_of_libraries(bad, set())] == ["_core", "_network_backend", "_pool"]


def test_middleware_is_pure_asgi() -> None:
    """Nobody uses BaseHTTPMiddleware, which breaks cancellation and streams."""
    nothing([path.name for path in APP.rglob("*.py") if "BaseHTTPMiddleware" in path.read_text(encoding="utf-8")])


def test_rules_bite() -> None:
    """The rule about rows says no where it must."""
    assert may_import("api", "federation")
    assert may_import("federation", "protocol")
    assert may_import("cli", "demo")
    assert may_import("cli", "main")
    assert may_import("cli", "conformance")
    for room, other in (
        ("engines", "fusion"),
        ("fusion", "engines"),
        ("protocol", "settings"),
        ("federation", "api"),
        ("main", "cli"),
        ("main", "demo"),
        ("api", "server"),
        ("demo", "protocol"),
        ("conformance", "protocol"),
        ("engines", "conformance"),
    ):
        assert not may_import(room, other), (room, other)
