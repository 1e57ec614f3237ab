"""Closed vocabularies and bounds that several rooms write down, since none of them may import another: held equal."""

from typing import Any, get_args

from pydantic import BaseModel

from app.fusion import identity, ranked_lists
from app.protocol import retrieve_params
from app.settings import schema


def bound(model: type[BaseModel], field: str) -> Any:
    """The largest value that the field allows."""
    (most,) = (rule.le for rule in model.model_fields[field].metadata if hasattr(rule, "le"))
    return most


def test_fusion_methods() -> None:
    """The methods one may configure, ask for and fuse by are the same."""
    fused = get_args(ranked_lists.Method)
    assert get_args(schema.FusionSettings.model_fields["method"].annotation) == fused
    assert fused == retrieve_params.FUSION_METHODS


def test_readings_of_confidence() -> None:
    """What a registry may say of an engine's confidences is what the fusion can do with them."""
    assert get_args(schema.EngineEntry.model_fields["confidence"].annotation) == get_args(ranked_lists.Reading)


def test_identities() -> None:
    """What one may configure and ask for as a document's identity is what the fusion knows."""
    known = get_args(identity.Identity)
    asked, _ = get_args(retrieve_params.GatewayOptions.model_fields["identity"].annotation)
    assert get_args(schema.RetrieveSettings.model_fields["identity"].annotation) == known
    assert get_args(asked) == known
    assert retrieve_params._WANTED["x-gateway.identity"] == f"one of {', '.join(known)}"


def test_largest_weight() -> None:
    """A weight may be as large in the registry, in a request and in the fusion."""
    assert bound(schema.EngineEntry, "weight") == retrieve_params.MAX_WEIGHT == ranked_lists.MAX_WEIGHT
