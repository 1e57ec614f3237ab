"""Which endpoint and method a path names."""

import pytest

from app.api.rpc_path import RpcPath, parse_path

KNOWN = {"docs", "team/docs", "team/docs/rcp/odd", "rcp"}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/rcp", RpcPath(None, "")),
        ("/rcp/", RpcPath(None, "")),
        ("/rcp/retrieve", RpcPath(None, "retrieve")),
        ("/rcp/index/add", RpcPath(None, "index/add")),
        ("/rcpx", None),
        ("/", None),
        ("", None),
        ("/engines", None),
        ("/engines/", None),
        ("/engines/docs", None),
        ("/engines/rcp", None),
        ("/engines//rcp", None),
        ("/engines/docs/rcpx", None),
        ("/engines/docs/rcp", RpcPath("docs", "")),
        ("/engines/docs/rcp/", RpcPath("docs", "")),
        ("/engines/docs/rcp/retrieve", RpcPath("docs", "retrieve")),
        ("/engines/docs/rcp/x-acme/rcp", RpcPath("docs", "x-acme/rcp")),
        ("/engines/docs/rcp/x-acme/rcp/more", RpcPath("docs", "x-acme/rcp/more")),
        ("/engines/team/docs/rcp/index/add", RpcPath("team/docs", "index/add")),
        ("/engines/team/docs/rcp/odd/rcp/ping", RpcPath("team/docs/rcp/odd", "ping")),
        ("/engines/rcp/rcp", RpcPath("rcp", "")),
        ("/engines/nobody/rcp/ping", RpcPath("nobody", "ping")),
    ],
)
def test_places(path: str, place: RpcPath | None) -> None:
    """Engines there are decide where an id with slashes ends; one that nobody knows is named all the same."""
    assert parse_path(path, KNOWN.__contains__) == place
