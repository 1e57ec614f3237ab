"""What a model asks a tool for: read from its arguments, and what is wrong with them told so that it can ask again.

Lenient where a model's habits do no harm ("8" is a number, null is nothing), strict where silence would: an argument
that no tool knows is refused by name. It refuses to know what tools do.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

MAX_QUERY = 100_000
"""Characters; the body of a request is bounded anyway."""


class BadArguments(Exception):
    """The arguments cannot be understood; its text says to the model why."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RetrieveArguments(_Arguments):
    """Of `retrieve`."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)
    k: int = Field(default=8, ge=1)
    mode: str | None = None
    filter: dict[str, Any] | None = None
    engines: Annotated[list[str] | None, BeforeValidator(_listed)] = None
    token_budget: int | None = Field(default=None, ge=1)
    raw: bool = False


class ListEnginesArguments(_Arguments):
    """Of `list_engines`."""


class SearchArguments(_Arguments):
    """Of `search`."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)


class FetchArguments(_Arguments):
    """Of `fetch`."""

    id: Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)] = Field(min_length=1)


Read = TypeVar("Read", bound=_Arguments)


def read(model: type[Read], arguments: Mapping[str, Any] | None) -> Read:
    """The arguments as `model`. Raises BadArguments."""
    said = {name: value for name, value in (arguments or {}).items() if not _says_nothing(model, name, value)}
    try:
        return model.model_validate(said)
    except ValidationError as fault:
        lines = [_line(model, each["type"], each["loc"], each["msg"]) for each in fault.errors(include_url=False)[:5]]
        raise BadArguments("; ".join(lines)) from None


def _says_nothing(model: type[BaseModel], name: str, value: Any) -> bool:
    """Whether it is null, or an optional argument left empty, as models do with what they have no use for."""
    if value is None:
        return True
    field = model.model_fields.get(name)
    return field is not None and not field.is_required() and value in ("", [], {})


def _line(model: type[BaseModel], kind: str, place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(map(str, place))[:100]
    known = ", ".join(f"'{field}'" for field in model.model_fields)
    if kind == "missing":
        return f"'{name}' is missing"
    if kind == "extra_forbidden":
        return f"'{name}' is no argument of this tool; " + (f"it takes {known}" if known else "it takes none")
    return f"'{name}': {message[:1].lower()}{message[1:]}"
