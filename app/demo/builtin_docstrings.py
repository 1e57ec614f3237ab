"""Docstrings of built-in functions and types and of a few modules written in C, which have no source file.

Separate from `corpus.py`, which reads source files: these are read from the live objects.
"""

import builtins
import itertools
import math
import re
import time
from collections.abc import Iterator
from inspect import cleandoc
from types import ModuleType

from app.demo.corpus import Entry, clip

MODULES: tuple[ModuleType, ...] = (builtins, itertools, math, time)


def read_compiled() -> Iterator[Entry]:
    """Every documented public name in MODULES; those of `builtins` go by their bare names, such as `str.split`."""
    for module in MODULES:
        prefix = "" if module is builtins else f"{module.__name__}."
        if module is not builtins:
            yield Entry(module.__name__, "module", module.__name__, clip(cleandoc(module.__doc__ or "")))
        for name, value in vars(module).items():
            yield from _definitions(value, prefix + name, module.__name__)


def _definitions(value: object, name: str, module: str) -> Iterator[Entry]:
    """`value` and, if it is a class, its own members, where they are documented and public."""
    own = name.rpartition(".")[2]
    if own.startswith("_") or not (callable(value) or isinstance(value, classmethod | staticmethod)):
        return
    if type(value).__module__ == "_sitebuiltins":  # exit, license and their like are the prompt's, not the language's
        return
    if isinstance(value, type) and value.__name__ != own:  # an alias, such as IOError
        return
    text = clip(cleandoc(value.__doc__ or ""))
    if text:
        yield Entry(name, "class" if isinstance(value, type) else "function", module, text, _signature(own, value))
    if isinstance(value, type) and value is not type:
        for member, definition in vars(value).items():
            yield from _definitions(definition, f"{name}.{member}", module)


def _signature(name: str, value: object) -> str:
    """`name(arguments)` where the interpreter knows them, without its `$self` and `$module`."""
    arguments = getattr(value, "__text_signature__", None)
    return name + re.sub(r"\$\w+(, /)?(, )?", "", " ".join(arguments.split())) if arguments else ""
