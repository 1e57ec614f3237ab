"""Build hook of the wheel. Everything else about the package is in pyproject.toml.

With RCP_GATEWAY_COMPILE=1 (`make wheel`) the modules listed there under `tool.rcp-gateway.compile` become extension
modules, compiled by mypyc. Without it the wheel, and an editable checkout, hold the sources only.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup


def extension_modules() -> list[Extension]:
    """The modules of pyproject.toml, compiled into one shared library with a stub for each of them."""
    from mypyc.build import mypycify  # only a build that compiles needs mypy

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    files = [f"{name.replace('.', '/')}.py" for name in project["tool"]["rcp-gateway"]["compile"]]
    # The project's own mypy settings bring the pydantic plugin, which mypyc does not support.
    options = ["--config-file=", "--ignore-missing-imports", "--no-incremental"]
    return mypycify([*options, *files], opt_level="1", debug_level="0", group_name="rcp_gateway")


# A wheel is built by several runs of this file; only the run that packs it needs the compiler.
compiling = os.environ.get("RCP_GATEWAY_COMPILE") == "1" and "bdist_wheel" in sys.argv
setup(ext_modules=extension_modules() if compiling else [])
