"""The hot rooms as machine code: what `rcp-gateway compile` made of them, and whether it may be used.

It decides which modules are compiled, and that a compiled one runs only where every source is, byte for byte, what it
was made from: whoever edits a file runs what it says. It refuses to know what the modules do.
"""

import importlib
import json
import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from typing import Any, Final

MODULES: Final = (
    *(
        "fusion.id_collisions",
        "fusion.confidence",
        "fusion.copies",
        "fusion.identity",
        "fusion.merge",
        "fusion.ranked_lists",
    ),
    *("fusion.document_index", "fusion.rrf", "fusion.score_table", "fusion.trust"),
    *(
        "federation.response",
        "federation.fanout",
        "federation.outcome",
        "federation.result_set",
        "federation.planner",
    ),
    *("federation.instrumentation", "federation.forwarded_params", "federation.base_plan", "federation.quorum"),
    *(
        "engines.in_flight_call",
        "engines.http.connection",
        "engines.engine",
        "engines.http.client",
        "engines.http.pool",
    ),
    *("engines.replicas", "engines.transport", "engines.pending_answer"),
    *("protocol.envelope", "resilience.semaphore", "telemetry.metrics", "telemetry.labelled_metrics"),
    *("federation.retrieve", "federation.hit_validation", "federation.pagination"),
    *("resilience.admission_queue", "telemetry.rolling", "telemetry.answer_metrics", "state.store"),
    *("telemetry.plain_metrics", "telemetry.overlap", "telemetry.buckets", "resilience.deadline"),
)
"""Where a federated retrieve spends its time, by module of this package."""

INTERPRETED_VARIABLE: Final = "RCP_GATEWAY_INTERPRETED"
"""Environment variable; not empty: the sources are run even where compiled modules lie ready."""

MANIFEST: Final = "manifest.json"
_INSTRUMENTATION: Final = MODULES[0]


def place() -> Path:
    """Where compiled modules are kept: with this Python environment, apart from every source."""
    return Path(sys.prefix) / "lib" / "rcp-gateway" / sys.implementation.cache_tag


def fingerprints(package: Path | None = None) -> dict[str, str]:
    """Module -> what its source (of `package`, by default this one) hashes to."""
    folder = Path(__file__).parent if package is None else package
    return {name: sha256((folder / f"{name.replace('.', '/')}.py").read_bytes()).hexdigest() for name in MODULES}


def manifest() -> str:
    """What a compilation is labelled with: for which Python it is, and of which sources."""
    return json.dumps({"suffix": EXTENSION_SUFFIXES[0], "sources": fingerprints()})


def reason_against(folder: Path | None = None) -> str | None:
    """Why what lies in `folder` (by default `place()`) cannot be used here and now; None if it can."""
    try:
        made_for = ((folder or place()) / MANIFEST).read_text(encoding="utf-8")
    except OSError:
        return "nothing is compiled"
    if made_for != manifest():
        return "the sources are not what was compiled"
    return None


def adopt(folder: Path | None = None) -> str | None:
    """From now on import the compiled modules; why not, if they cannot be used. All of them, or none.

    To be called before any of them is imported.
    """
    folder = folder or place()
    reason = reason_against(folder)
    if reason is not None:
        return reason
    if any(f"app.{name}" in sys.modules for name in MODULES):
        return None if in_use() else "the sources are in use already"
    sys.path.insert(0, str(folder))  # holds the library that all of them share
    for room in sorted({name.partition(".")[0] for name in MODULES}):
        package = importlib.import_module(f"app.{room}")
        package.__path__.insert(0, str(folder / "app" / room))
    return None


def choose() -> None:
    """Use the compiled modules from here on if they may be used, and nobody wishes otherwise."""
    if not os.environ.get(INTERPRETED_VARIABLE):
        adopt()


def in_use() -> bool:
    """Whether this process runs the compiled modules."""
    spec = getattr(sys.modules.get(f"app.{_INSTRUMENTATION}"), "__spec__", None)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


def call(module: str, function: str, *arguments: Any) -> Any:
    """Call a function by its name once it is settled what rooms run: how another process comes to its work."""
    choose()
    return getattr(importlib.import_module(module), function)(*arguments)
