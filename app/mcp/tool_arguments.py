"""Validates the arguments of the tools: lenient about types, strict about names.

Models write numbers as strings and null for absent values, and several hosts send objects and lists as JSON strings.
An unknown argument is refused by name, so that the model can correct its call.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.protocol import envelope
from app.protocol.errors import ParseError

MAX_QUERY = 100_000
"""Characters; the body of a request is bounded anyway."""


class BadArguments(Exception):
    """The arguments cannot be used; the text says why, for the model."""


def _from_json(value: Any) -> Any:
    """The object or list that a string contains as JSON; any other value unchanged."""
    if type(value) is str and value.lstrip()[:1] in ("{", "["):
        try:
            return envelope.loads(value)
        except ParseError as fault:
            raise ValueError(f"begins like JSON but cannot be read: {fault.message}") from None
    return value


def _listed(value: Any) -> Any:
    value = _from_json(value)
    # One name, or several with commas, as models write lists.
    if isinstance(value, str):
        return [name for part in value.split(",") if (name := part.strip())]
    return [value] if type(value) is int else value


Names = Annotated[list[str], BeforeValidator(_listed)]


class _Arguments(BaseModel):
    # An argument that is ignored would let a model believe that it had an effect.
    model_config = ConfigDict(extra="forbid", frozen=True)


class RetrieveArguments(_Arguments):
    """Of `retrieve`."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)
    k: int = Field(default=8, ge=1)
    mode: str | None = None
    filter: Annotated[dict[str, Any] | None, BeforeValidator(_from_json)] = None
    engines: Names | None = None
    token_budget: int | None = Field(default=None, ge=1)
    cursor: str | None = Field(default=None, max_length=256)
    raw: bool = False


class ListEnginesArguments(_Arguments):
    """Of `list_engines`."""


class SearchArguments(_Arguments):
    """Of `search`."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)


class FetchArguments(_Arguments):
    """Of `fetch`."""

    id: Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)] = Field(min_length=1)


class FeedbackArguments(_Arguments):
    """Of `feedback`."""

    answer: str = Field(min_length=1, max_length=64)
    ids: Annotated[Names, Field(min_length=1, max_length=100)]
    used: bool | None = None
    cited: bool | None = None
    helpful: bool | None = None
    poison_suspected: bool | None = None


Read = TypeVar("Read", bound=_Arguments)


def read(model: type[Read], arguments: Any) -> Read:
    """The arguments as `model`. Raises BadArguments."""
    try:
        arguments = _from_json(arguments)
    except ValueError as fault:
        raise BadArguments(f"the arguments: {fault}") from None
    if arguments is not None and not isinstance(arguments, Mapping):
        raise BadArguments("they must be an object")
    given = {name: value for name, value in (arguments or {}).items() if not _is_empty(model, name, value)}
    try:
        return model.model_validate(given)
    except ValidationError as fault:
        lines = [_line(model, each["type"], each["loc"], each["msg"]) for each in fault.errors(include_url=False)[:5]]
        raise BadArguments("; ".join(lines)) from None


def _is_empty(model: type[BaseModel], name: str, value: Any) -> bool:
    """Whether it is null, or an optional argument left empty, as models do with arguments they have no use for."""
    if value is None:
        return True
    field = model.model_fields.get(name)
    return field is not None and not field.is_required() and value in ("", [], {})


def _line(model: type[BaseModel], kind: str, place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(map(str, place))[:100]
    # `raw` is not listed to models, so it is not suggested to them either.
    known = ", ".join(f"'{field}'" for field in model.model_fields if field != "raw")
    if kind == "missing":
        return f"'{name}' is missing"
    if kind == "extra_forbidden":
        return f"'{name}' is no argument of this tool; " + (f"it takes {known}" if known else "it takes none")
    message = message.removeprefix("Value error, ")
    return f"'{name}': {message[:1].lower()}{message[1:]}"
