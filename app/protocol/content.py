"""Content blocks of queries, passages and documents (RCP §4.8): validation, modality and canonical spelling.

`data` is not decoded, and a caller's `uri` is never fetched.
"""

from types import MappingProxyType
from typing import Any, Final, NoReturn

from app.protocol.errors import InvalidParams
from app.protocol.filters import json_type

MAX_BLOCKS: Final = 100
"""Content blocks of one query."""

_MODALITIES = MappingProxyType({"text": "text", "image": "image", "audio": "audio", "blob": "multimodal"})
"""Type of a block -> its modality."""

TEXT_ONLY = frozenset({"text"})

_QUERYING: Final = frozenset({"retrieve", "rerank", "query/transform", "graph", "memory/recall", "feedback"})
_LISTING: Final = MappingProxyType(
    {
        "rerank": ("passages", "documents"),
        "embed": ("inputs", "texts"),
        "embed/sparse": ("inputs", "texts"),
        "embed/multi": ("inputs", "texts"),
    }
)
"""Method -> its params that list strings and content blocks."""


def simplest_params(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """`params` with their query, passages and inputs in the form that every engine must take (RCP §4.8).

    Done once, before anything is planned, compared or remembered, so that equal spellings are one request. What is
    malformed stays as it is and is refused where the method reads it. Methods of vendors are not touched.
    """
    query = params.get("query")
    if method == "retrieve" and type(query) is str:
        return params  # nearly always
    if method in _QUERYING and (type(query) is dict or type(query) is list):
        params = {**params, "query": simplest_query(query)}
    for name in _LISTING.get(method, ()):
        if type(params.get(name)) is list:
            params = {**params, name: [_simplest_block(block) for block in params[name]]}
    return params


def simplest_query(query: Any) -> Any:
    """A text block, and an array of nothing but text, as the string that it is equal to.

    Several texts are one text of several lines. An array of one block is that block. Any other array stays as it is.
    """
    if type(query) is not list:
        return _simplest_block(query, blank=False)
    if not 1 <= len(query) <= MAX_BLOCKS:
        return query
    blocks = [_simplest_block(block, blank=False) for block in query]
    if len(blocks) == 1:
        return blocks[0]
    if all(type(block) is str and block and not block.isspace() for block in blocks):
        return "\n".join(blocks)
    return query  # engines that take an array take the texts in it in both forms


def comparable_query(query: Any) -> Any:
    """The same value for all spellings of a query of several modalities."""
    return [_simplest_block(block) for block in query] if type(query) is list else query


def _simplest_block(block: Any, *, blank: bool = True) -> Any:
    """The text of a well-formed text block; any other block without nulls. `blank`: whether a text may say nothing."""
    if type(block) is not dict:
        return block
    text = block.get("text")
    if blank and block.get("type") == "text" and type(text) is str and not text.strip():
        return text
    try:
        read_block(block, "")
    except InvalidParams:
        return block
    if block["type"] == "text":
        return text
    return {name: value for name, value in block.items() if value is not None}


def read_query(query: Any) -> frozenset[str]:
    """The modalities of a `query`: a string, a block, or an array of them. Raises InvalidParams (-32602)."""
    if type(query) is str:
        if not query or query.isspace():
            _refuse("query", "must not be empty")
        return TEXT_ONLY
    if type(query) is dict:
        return frozenset({read_block(query, "query")})
    if type(query) is not list or not 1 <= len(query) <= MAX_BLOCKS:
        verb = "is required:" if query is None else "must be"
        _refuse("query", f"{verb} a non-empty string, a content block, or an array of 1 to {MAX_BLOCKS} of them")
    return frozenset([read_block(block, f"query[{index}]") for index, block in enumerate(query)])


def read_contents(contents: Any, path: str) -> frozenset[str]:
    """The modalities of an array of blocks and strings, empty ones too. Raises InvalidParams (-32602) naming `path`."""
    if type(contents) is not list:
        _refuse(path, f"must be an array of strings and content blocks, not {json_type(contents)}")
    blocks = [(index, block) for index, block in enumerate(contents) if type(block) is not str]
    modalities = {read_block(block, f"{path}[{index}]") for index, block in blocks}
    return frozenset(modalities) if len(blocks) == len(contents) else TEXT_ONLY | modalities


def read_block(block: Any, path: str) -> str:
    """The modality of one block or bare string. Raises InvalidParams (-32602) that names `path`."""
    if type(block) is str:
        if not block or block.isspace():
            _refuse(path, "must not be empty")
        return "text"
    if type(block) is not dict:
        _refuse(path, f"must be a string or a content block, not {json_type(block)}")
    kind = block.get("type")
    if type(kind) is not str or kind not in _MODALITIES:
        _refuse(f"{path}.type", f"must be one of {', '.join(_MODALITIES)}")
    for member in ("text", "mimeType", "data", "uri"):
        value = block.get(member)
        if value is not None and (type(value) is not str or not value or value.isspace()):
            _refuse(f"{path}.{member}", "must be a non-empty string")
    _check_body(block, kind, path)
    return _MODALITIES[kind]


def _check_body(block: dict[str, Any], kind: str, path: str) -> None:
    """A text block carries its text; any other says of which type it is, and carries its bytes or where they are."""
    data, uri = block.get("data"), block.get("uri")
    if data is not None and uri is not None:
        _refuse(f"{path}.uri", "must not be given beside 'data'")
    if kind == "text":
        if block.get("text") is None:
            _refuse(f"{path}.text", "is required in a text block")
        return
    if block.get("mimeType") is None:
        _refuse(f"{path}.mimeType", f"is required in a block of type {kind}")
    if data is None and uri is None:
        _refuse(f"{path}.data", f"(base64) or 'uri' is required in a block of type {kind}")


def _refuse(field: str, problem: str) -> NoReturn:
    raise InvalidParams(f"'{field}' {problem}", field=field)
