"""The present fusion parameters of a gateway: from files, else from the gateway, else the defaults."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.cli import gateway_client
from app.cli.failures import Failure
from app.evaluation.fusion_search import FusionParameters
from app.fusion.ranked_lists import FusionConfig, Reading

DEFAULTS = FusionConfig()


@dataclass(frozen=True, slots=True)
class CurrentFusion:
    """What one source says about fusion; what it says nothing about is missing or None."""

    weights: Mapping[str, float] = field(default_factory=dict)
    readings: Mapping[str, Reading] = field(default_factory=dict)
    rrf_k: int | None = None
    confidence_weight: float | None = None

    def over(self, other: "CurrentFusion") -> "CurrentFusion":
        """Both together; this one is believed where they differ."""
        return CurrentFusion(
            {**other.weights, **self.weights},
            {**other.readings, **self.readings},
            other.rrf_k if self.rrf_k is None else self.rrf_k,
            other.confidence_weight if self.confidence_weight is None else self.confidence_weight,
        )

    def blend(self, engines: list[str]) -> FusionParameters:
        """The settings for these engines."""
        return FusionParameters(
            {engine: self.weights.get(engine, 1.0) for engine in engines},
            DEFAULTS.rrf_k if self.rrf_k is None else self.rrf_k,
            DEFAULTS.confidence_weight if self.confidence_weight is None else self.confidence_weight,
        )

    def notes(self, engines: list[str]) -> list[str]:
        """What is taken for granted."""
        unknown = [engine for engine in engines if engine not in self.weights]
        notes = [f"the present weight of {', '.join(unknown)} is not known and taken to be 1"] if unknown else []
        if self.rrf_k is None or self.confidence_weight is None:
            notes.append("the present rrf_k and confidence_weight are not known and taken to be the defaults")
        return notes


def read_files(registry: Path | None, config: Path | None) -> CurrentFusion:
    """What the files say, as far as they are given. Raises SettingsError, and Failure where fusion is not by rrf."""
    from app.settings.sources import load_registry, load_settings

    present = CurrentFusion()
    if config is not None:
        fusion = load_settings(config, os.environ).fusion
        _need_rrf(fusion.method)
        present = CurrentFusion(rrf_k=fusion.rrf_k, confidence_weight=fusion.confidence_weight)
    if registry is not None:
        engines = load_registry(registry, _without_secrets(registry)).registry.engines
        weights = {entry.id: entry.weight for entry in engines}
        present = CurrentFusion(weights, {entry.id: entry.confidence for entry in engines}).over(present)
    return present


def _without_secrets(registry: Path) -> Mapping[str, str]:
    """An environment in which every variable that the file names is set: its headers are of no interest here."""
    from app.settings.file_syntax import read_text

    return dict.fromkeys(re.findall(r"\$\{(\w+)\}", read_text(registry)), "-")


def ask_gateway(url: str, text: Any, timeout: float) -> CurrentFusion:
    """What the gateway at `url` says it does with a query like this one; nothing if it does not answer or say.

    Raises Failure where fusion is not by rrf.
    """
    try:
        result = gateway_client.call(url, "retrieve", {"query": text, "k": 1}, timeout)
    except Failure:  # whoever cannot be asked at all is told so when it matters
        return CurrentFusion()
    report = _object(_object(result.get("_meta")).get("x-gateway"))
    fusion, engines = _object(report.get("fusion")), report.get("engines")
    _need_rrf(fusion.get("method", "rrf"))
    stated = [(entry.get("id"), _number(entry.get("weight"))) for entry in map(_object, _list(engines))]
    return CurrentFusion(
        {engine: weight for engine, weight in stated if isinstance(engine, str) and weight is not None},
        rrf_k=fusion["rrfK"] if type(fusion.get("rrfK")) is int else None,
        confidence_weight=_number(fusion.get("confidenceWeight")),
    )


def _need_rrf(method: Any) -> None:
    if method != "rrf":
        raise Failure(f"tune works on rrf alone, and fusion.method is {method}; set it to rrf to compare with")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
