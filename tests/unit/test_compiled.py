"""Rules for the modules that `make wheel` compiles, which the interpreter and mypy do not enforce."""

import ast
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
MODULES: list[str] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["rcp-gateway"]["compile"]


def sources() -> dict[str, ast.Module]:
    """The compiled modules, parsed."""
    return {name: ast.parse((PROJECT / f"{name.replace('.', '/')}.py").read_text()) for name in MODULES}


def test_the_list_is_sorted_and_names_modules() -> None:
    """Each module exists and is listed once."""
    assert sorted(set(MODULES)) == MODULES
    assert sources()


def test_no_set_passes_for_a_frozenset() -> None:
    """`frozenset | dict.keys()` is a set in Python and a frozenset for mypy: a TypeError once compiled. Use `union`."""
    found = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp):
                sides = [side.func for side in (node.left, node.right) if isinstance(side, ast.Call)]
                if any(isinstance(call, ast.Attribute) and call.attr == "keys" for call in sides):
                    found.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_no_handler_awaits() -> None:
    """No `except`, `finally` or `async with` of a compiled module awaits.

    mypyc keeps the exception being handled per thread. Tasks that run during the await would see it, and a compiled
    `finally` that awaits would raise it there.
    """
    found = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            handled = node.body if isinstance(node, ast.ExceptHandler) else []
            handled = [*handled, *node.finalbody] if isinstance(node, ast.Try) else handled
            found += [f"{name}:{at.lineno}" for part in handled for at in ast.walk(part) if isinstance(at, ast.Await)]
            found += [f"{name}:{node.lineno}"] if isinstance(node, ast.AsyncWith) else []  # its exit is such a handler
    assert found == []


def test_each_caught_exception_type_has_its_own_name() -> None:
    """A name has one type once compiled: binding another exception class to it is a TypeError."""
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
