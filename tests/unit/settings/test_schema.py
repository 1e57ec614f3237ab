"""What a registry entry may say, and the keys that must fit together."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.settings.field_errors import FieldError, faults_of
from app.settings.fields import file_name
from app.settings.schema import EngineEntry, GatewaySettings, Registry, ServerSettings, duplicate_addresses


def _faults(*engines: dict[str, Any]) -> list[str]:
    try:
        Registry.model_validate({"engines": list(engines)}, by_alias=True, by_name=False)
    except ValidationError as error:
        return [_told(fault) for fault in faults_of(error, Registry)]
    return []


def _told(fault: FieldError) -> str:
    return f"{fault.path}: {fault.message}"


def _http(**keys: Any) -> dict[str, Any]:
    return {"id": "a", "url": "http://h:1/rcp", **keys}


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9001/rcp", "https://h", "http://[::1]:9001/rcp", "http://h/rcp?key=x", "HTTP://h"],
)
def test_good_urls(url: str) -> None:
    """Addresses over http and https, IPv6 included, are taken."""
    assert _faults(_http(url=url)) == []


@pytest.mark.parametrize(
    "url",
    ["", "h:9001", "ftp://h", "rcp://h", "http://", "http://h:0", "http://h:99999", "http://h:x", "http://[::1"],
)
def test_bad_urls(url: str) -> None:
    """What is no address over http is a fault of the key `url`."""
    told = _faults(_http(url=url))
    assert len(told) == 1
    assert told[0].startswith("engines[0].url: must be an http:// or https:// URL")


@pytest.mark.parametrize(
    "url", ["http://u:p@h", "http://u@h", "http://h/#f", "http://h/#", "http://h/a b", "http://h/\n", "http://h/ü"]
)
def test_bad_parts_of_urls(url: str) -> None:
    """Credentials, fragments, spaces and characters outside ASCII are refused."""
    told = _faults(_http(url=url))
    assert len(told) == 1
    assert told[0].startswith("engines[0].url: must ")


def test_transport_is_inferred_as_the_sdk_infers_it() -> None:
    """Without `transport`, a command makes a stdio engine and a URL an http engine."""
    assert EngineEntry(id="a", command=["x"]).kind == "stdio"
    assert EngineEntry(id="a", url="http://h").kind == "http"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"id": "a"}, "engines[0]: needs 'url' or 'command'"),
        ({"id": "a", "transport": "http"}, "engines[0]: an http engine needs 'url'"),
        ({"id": "a", "transport": "stdio"}, "engines[0]: a stdio engine needs 'command'"),
        ({"id": "a", "command": ["x"], "url": "http://h"}, "engines[0].url: a stdio engine has no 'url'"),
        (_http(transport="http", command=["x"]), "engines[0].command: an http engine has no 'command'"),
        ({"id": "a", "command": []}, "engines[0].command: must not be empty"),
        ({"id": "a", "command": [""]}, "engines[0].command[0]: must name a program"),
        ({"id": "a", "command": ["x"], "headers": {"A": "b"}}, "engines[0].headers: a stdio engine has no headers"),
        (_http(tls={}), "engines[0].tls: needs an https:// URL"),
        (_http(url="https://h", tls={"keyFile": "k"}), "engines[0].tls.keyFile: needs 'certFile'"),
        (_http(replicas=["h:1"]), "engines[0].replicas[0]: must be an http:// or https:// URL"),
        (_http(replicas=["http://h:1/rcp"]), "engines[0].replicas[0]: is already a URL of this engine"),
        (_http(replicas=["http://i", "http://i"]), "engines[0].replicas[1]: is already a URL of this engine"),
        ({"id": "a", "replicas": ["http://h"]}, "engines[0]: needs 'url' or 'command'"),
        (
            {"id": "a", "command": ["x"], "replicas": ["http://h"]},
            "engines[0].replicas: a stdio engine has no replicas",
        ),
        (_http(url="https://h", replicas=["http://i"], tls={}), "engines[0].tls: needs https:// URLs only"),
        (_http(hedge=True), "engines[0].hedge: needs 'replicas'"),
        (_http(retries=6), "engines[0].retries: must be at most 5"),
        (_http(breaker={"failure": 3}), "engines[0].breaker.failure: "),
        (_http(breaker={"share": 0}), "engines[0].breaker.share: must be "),
        (_http(attemptTimeoutMs=0), "engines[0].attemptTimeoutMs: must be at least 1"),
        (_http(weight=-0.5), "engines[0].weight: must be at least 0, found -0.5"),
        (_http(weight=True), "engines[0].weight: expected a number, found true"),
        (
            _http(id="a b"),
            "engines[0].id: must start with a letter or digit and contain only letters, digits and . _ / -",
        ),
        (_http(id=""), "engines[0].id: must not be empty"),
        (_http(idNamespace="a:b"), "engines[0].idNamespace: must not contain ':' or spaces"),
        (_http(headers={"A b": "x"}), "engines[0].headers.A…: is not a header name"),
        (_http(headers={"Host": "x"}), "engines[0].headers.Host: is a header that the gateway sets itself"),
        (_http(headers={"a": "x", "A": "y"}), "engines[0].headers.A: is the same header as 'a'"),
        (_http(headers={"A": "x\r\nB: y"}), "engines[0].headers.A: the value contains a line break or another control"),
    ],
)
def test_faults_name_the_key(engine: dict[str, Any], told: str) -> None:
    """Each fault of an entry is told at the key that is to be changed."""
    found = _faults(engine)
    assert len(found) == 1
    assert found[0].startswith(told)


def test_an_engine_has_its_url_and_its_replicas() -> None:
    """Every address of an engine, in the order of the file."""
    entry = EngineEntry(id="a", url="http://h", replicas=["http://i", "http://j"])
    assert entry.urls == ("http://h", "http://i", "http://j")
    assert EngineEntry(id="a", command=["x"]).urls == ()


def test_ids_are_unique() -> None:
    """A second engine with the same id is a fault at that second id."""
    assert _faults(_http(), _http(id="b"), _http()) == ["engines[2].id: 'a' is already the id of engines[0]"]


def test_weight_zero_is_a_wish() -> None:
    """Weight 0 is allowed: such an engine adds nothing to scores."""
    assert _faults(_http(weight=0)) == []


def test_header_values_are_not_in_the_repr() -> None:
    """What is printed of an entry in a log or a traceback holds no secret."""
    entry = EngineEntry(id="a", url="http://h", headers={"Authorization": "Bearer SECRET"})
    assert "SECRET" not in repr(entry)


def test_keys_in_files() -> None:
    """The registry is written in camelCase, the settings in snake_case."""
    assert file_name(EngineEntry, "timeout_ms") == "timeoutMs"
    assert file_name(GatewaySettings, "server") == "server"


@pytest.mark.parametrize("host", ["e.example", "E.example:8080", "10.0.0.1", "[::1]", "[::1]:9", "fd00::1"])
def test_hosts_for_discovery(host: str) -> None:
    """A host, or host and port, in small letters."""
    entry = EngineEntry.model_validate(_http(discover=True, discoverHosts=[host]))
    assert entry.discover_hosts == [host.lower()]


@pytest.mark.parametrize(
    "host", ["", "http://e.example", "e.example/x", "*.example", "a b", "user@e", "e:port", "e:1:2"]
)
def test_what_is_no_host(host: str) -> None:
    """A scheme, a path, a pattern or credentials are refused, with the way to write it."""
    (told,) = _faults(_http(discover=True, discoverHosts=[host]))
    assert told.startswith("engines[0].discoverHosts[0]: ")


def test_hosts_without_discovery_are_a_mistake() -> None:
    """`discoverHosts` alone would do nothing."""
    assert _faults(_http(discoverHosts=["e.example"])) == [
        "engines[0].discoverHosts: has no effect without 'discover'",
    ]


@pytest.mark.parametrize(
    ("url", "kept"), [("https://rcp.example/", "https://rcp.example"), ("http://h:1/a/", "http://h:1/a")]
)
def test_public_urls(url: str, kept: str) -> None:
    """Where callers reach the gateway, without the last slash."""
    assert ServerSettings(public_url=url).public_url == kept


@pytest.mark.parametrize(
    "url", ["rcp.example", "ftp://h", "https://", "https://h?key=SECRET", "https://u:SECRET@h", "http://h/#x"]
)
def test_what_is_no_public_url(url: str) -> None:
    """It must be an address, and hold nothing that is not for every caller."""
    with pytest.raises(ValidationError) as error:
        GatewaySettings.model_validate({"server": {"public_url": url}})
    (fault,) = faults_of(error.value, GatewaySettings)
    assert fault.path == "server.public_url"
    assert "SECRET" not in str(fault)


def test_sessions_need_one_worker() -> None:
    """A handshake that another worker knows nothing of would be no handshake."""
    with pytest.raises(ValidationError) as error:
        GatewaySettings.model_validate({"server": {"handshake": "required", "workers": 2}})
    (fault,) = faults_of(error.value, GatewaySettings)
    assert (fault.path, "workers: 1" in fault.message) == ("server.handshake", True)
    shared = {"server": {"handshake": "required", "workers": 2}, "state": {"url": "redis://h"}}
    assert GatewaySettings.model_validate(shared).server.workers == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"url": "http://h/rcp"}, {"url": "HTTP://H:80/rcp/"}, True),
        ({"url": "https://h/rcp?k=1"}, {"url": "https://h.:443/rcp/?k=1"}, True),
        ({"url": "http://h/rcp"}, {"url": "http://other/rcp", "replicas": ["http://H/rcp"]}, True),
        ({"command": ["x", "1"]}, {"command": ["x", "1"]}, True),
        ({"url": "http://h/rcp"}, {"url": "https://h/rcp"}, False),
        ({"url": "http://h/rcp"}, {"url": "http://h:81/rcp"}, False),
        ({"url": "http://h/rcp"}, {"url": "http://h/RCP"}, False),
        ({"url": "http://h/rcp?k=1"}, {"url": "http://h/rcp?k=2"}, False),
        ({"url": "http://h/rcp"}, {"url": "http://h/rcp", "enabled": False}, False),
        ({"command": ["x", "1"]}, {"command": ["x", "2"]}, False),
    ],
)
def test_engines_that_are_one_and_the_same_are_found(one: Any, other: Any, same: bool) -> None:
    """By what an address means, not by how it is written."""
    entries = [EngineEntry.model_validate({"id": "a", **one}), EngineEntry.model_validate({"id": "b", **other})]
    assert duplicate_addresses(entries) == ([("a", "b")] if same else [])


@pytest.mark.parametrize(("written", "read"), [(True, "on"), (False, "off"), ("frozen", "frozen")])
def test_on_and_off_may_be_written_bare(written: object, read: str) -> None:
    """YAML makes booleans of them."""
    assert GatewaySettings.model_validate({"fusion": {"learning": written}}).fusion.learning == read


@pytest.mark.parametrize("written", [1, "yes", None])
def test_anything_else_is_no_way_to_learn(written: object) -> None:
    """And is refused."""
    with pytest.raises(ValidationError):
        GatewaySettings.model_validate({"fusion": {"learning": written}})
