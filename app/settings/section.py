"""What every section of `gateway.yaml`, and of the registry, has in common: strict types, unknown keys refused, nothing
changed afterwards.

Decides how models of this room behave; it refuses to know what any of them says.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

ANNOTATION = r"^(\$schema$|description$|x-)"
"""Keys for people and editors: allowed in every object whose keys are fixed, and ignored."""

_is_annotation = re.compile(ANNOTATION).search


def without_annotations(value: Any) -> Any:
    """`value`, an object of a file, without the keys that mean nothing to the gateway; anything else as it is."""
    if not isinstance(value, dict):
        return value
    return {key: held for key, held in value.items() if not (isinstance(key, str) and _is_annotation(key))}


class MisplacedKey(ValueError):
    """A fault seen only by looking at several keys together; `at` leads from where it was seen to the culprit."""

    def __init__(self, message: str, *at: str | int) -> None:
        super().__init__(message)
        self.at = at


class Section(BaseModel):
    """snake_case in the file."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"patternProperties": {ANNOTATION: {}}},
    )

    @model_validator(mode="before")
    @classmethod
    def _ignore_annotations(cls, value: Any) -> Any:
        return without_annotations(value)


class RegistrySection(Section):
    """camelCase in the file, as in RCP itself."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


def words(value: Any) -> Any:
    """One word, or several with commas, for a list: as an environment variable says it."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with the keys it may also have under another name (`names`: that name -> the key).

    Raises Misplaced for a key that stands there under both.
    """
    if not isinstance(value, dict):
        return value
    for other, key in names.items():
        if other in value and key in value:
            raise MisplacedKey(f"stands there twice, as '{other}' as well", key)
    return {names.get(key, key): held for key, held in value.items()}
