"""Params of a new fusion of given ranked lists, for trying out weights: keys, scores and confidences, no texts.

Separate, because it and `retrieve_params` are the only modules of this package that validate with pydantic.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from app.protocol.errors import InvalidParams
from app.protocol.retrieve_params import MAX_ENGINES, MAX_WEIGHT

MAX_LIST = 1000
"""Hits of one list, as many as are read of an engine's response."""


class _SentFusion(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=to_camel)


class SentHit(_SentFusion):
    """One hit of a list, at its rank."""

    key: Annotated[str, Field(max_length=100_000)]
    score: float
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None


_Finite = Annotated[float, Field(allow_inf_nan=False)]


class SentMap(NamedTuple):
    """What was learned of an engine's claims, as an explanation lists it: kind, θ, n, and mean and deviation of its
    scores."""

    kind: Literal["confident", "silent"]
    theta: Annotated[list[Annotated[_Finite, Field(ge=-8, le=8)]], Field(min_length=2, max_length=4)]
    n: Annotated[_Finite, Field(ge=0)]
    mean: _Finite
    sd: Annotated[_Finite, Field(ge=0)]


class SentList(_SentFusion):
    """One engine's list, best hit first, each key once."""

    engine: Annotated[str, Field(min_length=1, max_length=512)]
    hits: Annotated[list[SentHit], Field(max_length=MAX_LIST)]
    weight: Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)] = 1.0
    asked: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    score_floor: float | None = None
    confidence: Literal["ranked", "independent", "ignore"] = "ranked"
    silent: Literal["scores", "ranks"] | None = None
    calibration: tuple[SentMap | None, SentMap | None] | None = None
    """Of lists with confidences, and of those without."""

    @field_validator("calibration", mode="before")
    @classmethod
    def _pair(cls, sent: Any) -> Any:
        return tuple(sent) if type(sent) is list else sent


class Refusion(_SentFusion):
    """One request for a new fusion."""

    lists: Annotated[list[SentList], Field(max_length=MAX_ENGINES)]
    k: Annotated[int, Field(ge=0, le=10_000)] = 10
    method: Literal["rrf", "weighted", "convex"] = "rrf"
    rrf_k: Annotated[int, Field(ge=1, le=100_000)] = 60
    confidence_weight: Annotated[float, Field(ge=0, le=1)] = 0.8
    silent: Literal["scores", "ranks"] = "scores"


def read_refusion(body: Any) -> Refusion:
    """Validate the request body. Raises InvalidParams (-32602)."""
    try:
        return Refusion.model_validate(body)
    except ValidationError as fault:
        error = fault.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, error["loc"]))
        raise InvalidParams(f"'{field[:200]}': {error['msg'].lower()}", field=field[:200]) from None
