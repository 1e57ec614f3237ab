"""Which endpoint and method a path names."""

import pytest

from app.api.place import Place, place_of

KNOWN = {"docs", "team/docs", "team/docs/rcp/odd", "rcp"}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/rcp", Place(None, "")),
        ("/rcp/", Place(None, "")),
        ("/rcp/retrieve", Place(None, "retrieve")),
        ("/rcp/index/add", Place(None, "index/add")),
        ("/rcpx", None),
        ("/", None),
        ("", None),
        ("/engines", None),
        ("/engines/", None),
        ("/engines/docs", None),
        ("/engines/rcp", None),
        ("/engines//rcp", None),
        ("/engines/docs/rcpx", None),
        ("/engines/docs/rcp", Place("docs", "")),
        ("/engines/docs/rcp/", Place("docs", "")),
        ("/engines/docs/rcp/retrieve", Place("docs", "retrieve")),
        ("/engines/docs/rcp/x-acme/rcp", Place("docs", "x-acme/rcp")),
        ("/engines/docs/rcp/x-acme/rcp/more", Place("docs", "x-acme/rcp/more")),
        ("/engines/team/docs/rcp/index/add", Place("team/docs", "index/add")),
        ("/engines/team/docs/rcp/odd/rcp/ping", Place("team/docs/rcp/odd", "ping")),
        ("/engines/rcp/rcp", Place("rcp", "")),
        ("/engines/nobody/rcp/ping", Place("nobody", "ping")),
    ],
)
def test_places(path: str, place: Place | None) -> None:
    """Engines there are decide where an id with slashes ends; one that nobody knows is named all the same."""
    assert place_of(path, KNOWN.__contains__) == place
