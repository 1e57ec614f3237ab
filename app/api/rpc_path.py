"""Reads the path of a URL: `/rcp`, or `/engines/{id}/rcp` for one engine, and the method behind it (RCP §5.2).

Ids and methods may both hold slashes, so the known engines decide where an id ends.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from app.protocol.method_names import GATES, UNGATED

BASE = "/rcp"
ENGINES = "/engines/"
MCP_PATH = "/mcp"
MCP_PATHS = (MCP_PATH, MCP_PATH + "/")
"""Some clients append a slash to the address that they are given."""
MCP_METADATA = "/.well-known/oauth-protected-resource" + MCP_PATH
"""The OAuth metadata of the MCP endpoint (RFC 9728)."""


class RpcPath(NamedTuple):
    """Where a message was sent."""

    engine: str | None
    """None: the whole federation."""
    method: str
    """What stands behind `/rcp/`, empty if nothing does."""


_USUAL: Mapping[str, RpcPath] = MappingProxyType(
    {BASE: RpcPath(None, ""), **{f"{BASE}/{method}": RpcPath(None, method) for method in UNGATED | GATES.keys()}}
)
"""What nearly every request names, made once."""

USUAL_PATHS = frozenset(_USUAL)


def parse_path(path: str, known: Callable[[str], bool]) -> RpcPath | None:
    """The place of `path`; None if RCP is not spoken there. An engine that nobody knows is named all the same."""
    usual = _USUAL.get(path)
    if usual is not None:
        return usual
    if path.startswith(BASE):
        behind = path[len(BASE) :]
        return RpcPath(None, behind[1:]) if not behind or behind[0] == "/" else None
    if not path.startswith(ENGINES):
        return None
    paths = _engine_paths(path[len(ENGINES) :])
    return next((each for each in paths if known(each.engine or "")), paths[0] if paths else None)


def _engine_paths(rest: str) -> list[RpcPath]:
    """Every way to read `{id}/rcp` or `{id}/rcp/{method}`, the shortest method first."""
    steps = rest.split("/")
    cuts = [index for index in range(len(steps) - 1, 0, -1) if steps[index] == BASE[1:]]
    return [RpcPath("/".join(steps[:cut]), "/".join(steps[cut + 1 :])) for cut in cuts if any(steps[:cut])]
