"""Parses URL paths: `/rcp` or `/engines/{id}/rcp`, optionally followed by a method (RCP §5.2).

Both ids and methods can contain slashes, so the ids of known engines decide where an id ends.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from app.protocol.method_names import GATES, UNGATED

BASE = "/rcp"
ENGINES = "/engines/"
MCP_PATH = "/mcp"
MCP_PATHS = (MCP_PATH, MCP_PATH + "/")
"""Some clients append a slash to the address that they are configured with."""
MCP_METADATA = "/.well-known/oauth-protected-resource" + MCP_PATH
"""The OAuth metadata of the MCP endpoint (RFC 9728)."""


class RpcPath(NamedTuple):
    """The target of a message."""

    engine: str | None
    """None: the federation."""
    method: str
    """The method after `/rcp/`; empty without one."""


_USUAL: Mapping[str, RpcPath] = MappingProxyType(
    {BASE: RpcPath(None, ""), **{f"{BASE}/{method}": RpcPath(None, method) for method in UNGATED | GATES.keys()}}
)
"""The paths of nearly all requests, parsed once."""

USUAL_PATHS = frozenset(_USUAL)


def parse_path(path: str, known: Callable[[str], bool]) -> RpcPath | None:
    """The target of `path`; None if it is not a path of RCP. `known` says whether an engine exists.

    A path with an unknown engine has a target, too: the endpoint refuses it by name.
    """
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
    """All ways to read `{id}/rcp` or `{id}/rcp/{method}`, the shortest method first."""
    steps = rest.split("/")
    cuts = [index for index in range(len(steps) - 1, 0, -1) if steps[index] == BASE[1:]]
    return [RpcPath("/".join(steps[:cut]), "/".join(steps[cut + 1 :])) for cut in cuts if any(steps[:cut])]
