"""What of a foreign listing may join, with whose wishes; and how its pages are read."""

from typing import Any

import pytest

from app.engines.discovery import MAX_LISTED, MAX_PAGES, listing_of, read_catalog
from app.protocol.errors import ProtocolViolation
from app.settings.engine_parts import EngineTls
from app.settings.schema import EngineEntry
from tests.support.fake_engine import FakeTransport, entry_of
from tests.support.lone_engine import LoneEngine

GATEWAY = entry_of(
    "in",
    url="https://in.example/rcp?key=1",
    discover=True,
    discoverHosts=["away.example", "other.example:8080", "[::1]:9"],
    headers={"Authorization": "Bearer SECRET"},
    tls={"caFile": "ca.pem"},
    weight=0.5,
    priority=7,
    required=True,
    timeoutMs=300,
    idNamespace="n",
)


def listed(url: Any, engine_id: Any = "x", **more: Any) -> dict[str, Any]:
    return {"id": engine_id, "endpoint": {"transport": "http", "url": url}, **more}


def joining(*entries: Any) -> dict[str, EngineEntry]:
    return dict(listing_of(GATEWAY, entries).joining)


def test_wishes_are_the_gateways() -> None:
    """Everything but the address comes from the gateway's entry, which is not discovered further."""
    entry = joining(listed("https://away.example/x"))["x"]
    assert entry.model_dump(exclude_defaults=True) == {
        "id": "in/x",
        "url": "https://away.example/x",
        "weight": 0.5,
        "priority": 7,
        "required": True,
        "timeout_ms": 300,
        "id_namespace": "n",
    }


@pytest.mark.parametrize(
    ("url", "home"),
    [
        ("https://in.example/engines/x/rcp", True),
        ("https://IN.example:443/x", True),
        ("https://in.example:444/x", False),
        ("http://in.example/x", False),
        ("http://in.example:443/x", False),
        ("https://away.example/x", False),
    ],
)
def test_credentials_are_for_the_same_origin(url: str, home: bool) -> None:
    """Headers and TLS files are used at the gateway's own scheme, host and port only."""
    entry = joining(listed(url))["x"]
    assert entry.headers == (GATEWAY.headers if home else {})
    assert entry.tls == (EngineTls(ca_file="ca.pem") if home else None)


@pytest.mark.parametrize(
    ("url", "joins"),
    [
        ("http://other.example:8080/x", True),
        ("http://other.example/x", False),
        ("http://sub.away.example/x", False),
        ("http://away.example.evil.example/x", False),
        ("http://away.example@evil.example/x", False),
        ("http://evil.example#away.example", False),
        ("http://[::1]:9/x", True),
        ("http://[::1]:10/x", False),
        (7, False),
        (None, False),
        ("http://away.example:99999/x", False),
        ("http://away.example/ x", False),
    ],
)
def test_hosts_are_compared_as_they_are_written(url: Any, joins: bool) -> None:
    """`host` allows any port, `host:port` one; nothing that only looks like it."""
    assert ("x" in joining(listed(url))) is joins


def test_reasons_do_not_repeat_the_listing() -> None:
    """Why an engine does not join is said without its URL."""
    found = listing_of(GATEWAY, [listed("http://evil.example/?token=SECRET"), listed("nonsense SECRET", "y")])
    assert set(found.refused) == {"x", "y"}
    assert "discoverHosts" in found.refused["x"]
    assert "SECRET" not in "".join(found.refused.values())


@pytest.mark.parametrize("engine_id", ["", "a b", "../x", "a//b", "a/./b", "é", "x" * 128, "x\n"])
def test_ids_that_are_none(engine_id: str) -> None:
    """An id that cannot be one of ours stays behind its gateway."""
    found = listing_of(GATEWAY, [listed("https://away.example/x", engine_id)])
    assert found.ids == (engine_id,)
    assert found.joining == {}
    assert set(found.refused) == {engine_id}


def test_what_is_malformed_or_of_another_transport_does_not_join() -> None:
    """Without id they do not count, without endpoint or only discovered they stay behind; of twins the first counts."""
    found = listing_of(
        GATEWAY,
        [
            None,
            {"endpoint": {"url": "https://away.example/"}},
            {"id": "no"},
            {"id": "stdio", "endpoint": {"transport": "stdio", "command": ["x"]}},
            {"id": "text", "endpoint": "https://away.example/"},
            listed("https://away.example/", "found", **{"x-gateway": {"discovered": True}}),
            {"id": "bare", "endpoint": {"url": "https://away.example/bare"}},
            listed("https://away.example/2", "bare"),
        ],
    )
    assert found.ids == ("no", "stdio", "text", "found", "bare")
    assert {name: entry.url for name, entry in found.joining.items()} == {"bare": "https://away.example/bare"}
    assert found.refused == {}


async def read(*pages: Any) -> tuple[list[Any], FakeTransport]:
    transport = FakeTransport(**{"catalog/list": list(pages)})
    lone = LoneEngine(transport)
    return await read_catalog(lone.engine, 1e9), transport


async def test_pages_are_followed_until_a_cursor_comes_again() -> None:
    """Each cursor is sent once; one that comes again is not followed."""
    found, transport = await read(
        {"engines": [1], "nextCursor": "a"}, {"engines": [2], "nextCursor": "b"}, {"engines": [3], "nextCursor": "a"}
    )
    assert found == [1, 2, 3]
    assert [params for _, params in transport.calls] == [{}, {"cursor": "a"}, {"cursor": "b"}]


async def test_a_listing_without_end_is_cut() -> None:
    """Only so many pages are read and only so many engines are looked at."""
    numbers = iter(range(10_000))

    async def endless(params: Any) -> Any:
        return {"engines": [], "nextCursor": str(next(numbers))}

    found, transport = await read(endless)
    assert (found, transport.asked("catalog/list")) == ([], MAX_PAGES + 1)
    found, _ = await read({"engines": list(range(10_000)), "nextCursor": "a"})
    assert found == list(range(MAX_LISTED))


async def test_a_page_that_is_none() -> None:
    """A result without `engines` is no listing."""
    with pytest.raises(ProtocolViolation):
        await read({"engines": {"a": 1}})
