"""`rcp-gateway compile`: make machine code of the hot rooms, for this machine and this Python; `serve` then uses it.

It decides what is needed for that and where it is put. It refuses to know which modules are worth it, and changes no
source: without a compiler everything runs as it did.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import typer

from app import compiled
from app.cli.failures import Failure

LIMIT = 1800.0
"""Seconds for the compiler; it takes two minutes on a core of its own."""

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

files = [word for word in sys.argv if word.endswith(".py")]
sys.argv[:] = [word for word in sys.argv if not word.endswith(".py")]
options = ["--config-file=", "--ignore-missing-imports", "--no-incremental"]
extensions = mypycify([*options, *files], opt_level="1", debug_level="0", group_name="rcp_gateway")
setup(name="rcp-gateway-compiled", ext_modules=extensions, packages=[], py_modules=[])
"""


def register(app: typer.Typer) -> None:
    """Offer the command."""
    app.command("compile")(compile_modules)


def compile_modules() -> None:
    """Make machine code of the hot rooms, which `serve` then uses: a third less CPU per question.

    Needs mypy, setuptools, a C compiler and Python's headers. Whoever edits a source runs that source.
    """
    if compiled.reason_against() is None:
        typer.echo("compiled already, from these very sources")
        return
    lacking = _lacking()
    if lacking is not None:
        raise Failure(f"not compiled, the gateway runs interpreted: {lacking}")
    typer.echo(f"compiling {len(compiled.MODULES)} modules (one to three minutes)")
    made = _make(compiled.place())
    typer.echo(f"compiled {made} modules; serve uses them as long as their sources stay as they are")


def _lacking() -> str | None:
    """What is needed and not there, in words; None if all is."""
    for library in ("mypyc", "setuptools"):
        if importlib.util.find_spec(library) is None:
            return f"'{library}' is not installed: in the checkout, pip install '.[compile]'"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are not installed (on Debian: python3-dev)"
    return None


def _make(target: Path) -> int:
    """Compile a copy of the sources, and put the outcome in the place of what was there; the number of modules.

    The copy is labelled with what its sources are, so an edit meanwhile makes it unusable, not wrong.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compile-", dir=target.parent) as name:
        workshop = Path(name)
        label = compiled.manifest()
        shutil.copytree(Path(compiled.__file__).parent, workshop / "app", ignore=shutil.ignore_patterns("__pycache__"))
        files = [f"app/{module.replace('.', '/')}.py" for module in compiled.MODULES]
        _run([sys.executable, "-c", _BUILD, "build_ext", *files, "--build-lib=made"], workshop)
        made = workshop / "made"
        (made / compiled.MANIFEST).write_text(label, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return len(compiled.MODULES)


def _run(command: list[str], folder: Path) -> None:
    """Run the build. Raises Failure with the end of what it said."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"not compiled, the gateway runs interpreted: not done after {LIMIT:.0f} s") from None
    if done.returncode:
        said = f"{done.stdout}\n{done.stderr}".strip().splitlines() or ["it did not say why"]
        raise Failure("\n".join(["not compiled, the gateway runs interpreted; the compiler's last words:", *said[-8:]]))
