"""Messages of settings errors: the place, what was expected, what was found, what to write instead."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.settings.field_errors import FieldError, SettingsError, dotted, faults_of, shown
from app.settings.schema import GatewaySettings, Registry


def _gateway(document: Any) -> dict[str, FieldError]:
    with pytest.raises(ValidationError) as error:
        GatewaySettings.model_validate(document)
    return {fault.path: fault for fault in faults_of(error.value, GatewaySettings)}


def _engine(**keys: Any) -> dict[str, FieldError]:
    document = {"engines": [{"id": "a", "url": "http://h", **keys}]}
    with pytest.raises(ValidationError) as error:
        Registry.model_validate(document, by_alias=True, by_name=False)
    return {fault.path: fault for fault in faults_of(error.value, Registry)}


@pytest.mark.parametrize(
    ("section", "key", "value", "message", "suggestion"),
    [
        ("retrieve", "deadline_ms", "5s", "expected a whole number, found text '5s'", "write 5000 (milliseconds)"),
        (
            "retrieve",
            "deadline_ms",
            "1.5 s",
            "expected a whole number, found text '1.5 s'",
            "write 1500 (milliseconds)",
        ),
        ("server", "keep_alive_seconds", "2min", "expected a whole number, found text '2min'", "write 120 (seconds)"),
        (
            "engines",
            "max_response_bytes",
            "16MiB",
            "expected a whole number, found text '16MiB'",
            "write 16777216 (bytes)",
        ),
        ("server", "port", "08080", "expected a whole number, found text '08080'", "write 8080, without quotes or"),
        ("server", "port", "no", "expected a whole number, found text 'no'", None),
        ("server", "port", True, "expected a whole number, found true", None),
        ("server", "port", 80.5, "expected a whole number, found 80.5", None),
        ("server", "port", 70000, "must be at most 65535, found 70000", None),
        ("server", "port", None, "expected a whole number, found nothing", "leave the key out for its default"),
        ("server", "name", 7, "expected text, found 7", None),
        ("server", "name", "", "must not be empty", None),
        ("server", "name", "x" * 200, "must not be longer than 128", None),
        ("engines", "idle_seconds", 0, "must be more than 0, found 0", None),
        ("engines", "idle_seconds", float("inf"), "expected a finite number, found inf", None),
        ("engines", "idle_seconds", [1], "expected a number, found a list", None),
        ("fusion", "method", "RRF", "expected 'rrf', 'weighted' or 'convex', found text 'RRF'", "did you mean 'rrf'?"),
        ("fusion", "method", "xyz", "expected 'rrf', 'weighted' or 'convex', found text 'xyz'", None),
        ("fusion", "confidence_weight", 1.5, "must be at most 1, found 1.5", None),
        ("fusion", "confidence_weight", "0.5", "expected a number, found text '0.5'", "write 0.5, without quotes"),
    ],
)
def test_a_bad_value_is_told(section: str, key: str, value: Any, message: str, suggestion: str | None) -> None:
    """A bad value is answered with what was expected, what was found, and the right spelling if there is one."""
    fault = _gateway({section: {key: value}})[f"{section}.{key}"]
    assert fault.message == message
    assert (fault.suggestion or "").startswith(suggestion or "")
    assert (fault.suggestion is None) == (suggestion is None)


@pytest.mark.parametrize(
    ("document", "path", "suggestion"),
    [
        ({"retrieve": {"windw_min": 1}}, "retrieve.windw_min", "did you mean 'window_min'?"),
        ({"retrive": {}}, "retrive", "did you mean 'retrieve'?"),
        ({"port": 1}, "port", "did you mean 'server.port'?"),
        ({"federation": {"zzz": 1}}, "federation.zzz", "allowed here: depth"),
    ],
)
def test_an_unknown_key_is_told_with_the_known_one(document: Any, path: str, suggestion: str) -> None:
    """An unknown key at any level is a fault with the nearest key that is valid there."""
    assert _gateway(document) == {path: FieldError(path, "unknown key", suggestion)}


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("timeout_ms", "did you mean 'timeoutMs'?"),
        ("timeout", "did you mean 'timeoutMs'?"),
        ("idnamespace", "did you mean 'idNamespace'?"),
        ("zzz", "allowed here: id, transport, url"),
    ],
)
def test_unknown_registry_keys_are_told_in_camel_case(key: str, suggestion: str) -> None:
    """Only the protocol's camelCase is valid in the registry, and that is what is suggested."""
    fault = _engine(**{key: 1})[f"engines[0].{key}"]
    assert fault.message == "unknown key"
    assert (fault.suggestion or "").startswith(suggestion)


@pytest.mark.parametrize(
    ("key", "message", "suggestion"),
    [
        ("discoverHosts", "expected a list, found text 'docs-1'", 'write ["docs-1"]'),
        ("command", "expected a list, found text", 'write a list, such as ["a", "b"]'),
    ],
)
def test_a_text_in_place_of_a_list_is_told(key: str, message: str, suggestion: str) -> None:
    """The remedy shows the list that was meant, and of what may hold secrets only how any list is written."""
    fault = _engine(**{key: "docs-1"})[f"engines[0].{key}"]
    assert (fault.message, fault.suggestion) == (message, suggestion)


def test_keys_inside_tls_are_told() -> None:
    """Suggestions know the keys of the level where the fault is."""
    fault = _engine(tls={"ca": "x"})["engines[0].tls.ca"]
    assert fault.suggestion == "did you mean 'caFile'?"


def test_a_missing_key_is_told() -> None:
    """What has no default and is absent is named."""
    with pytest.raises(ValidationError) as error:
        Registry.model_validate({}, by_alias=True, by_name=False)
    assert faults_of(error.value, Registry) == (FieldError("engines", "is missing"),)


@pytest.mark.parametrize("document", [[], "text", 7])
def test_a_file_that_is_no_object_is_told(document: Any) -> None:
    """A file of another shape is one fault without a path."""
    assert _gateway(document)[""].message.startswith("expected an object, found")


def test_a_variable_that_set_the_value_is_named() -> None:
    """Where the environment set the bad value, the message says which variable did."""
    with pytest.raises(ValidationError) as error:
        GatewaySettings.model_validate({"server": {"port": "x"}})
    origins: dict[tuple[str, ...], str] = {("server", "port"): "RCP_GATEWAY__SERVER__PORT"}
    (fault,) = faults_of(error.value, GatewaySettings, origins)
    assert fault.message == "expected a whole number, found text 'x' (set by RCP_GATEWAY__SERVER__PORT)"


@pytest.mark.parametrize(
    "keys",
    [
        {"headers": {"X-Key": 12345}},
        {"headers": {"X-Key": ["SECRET"]}},
        {"headers": {"X-Key": "SECRET\n"}},
        {"headers": {"X-Key": "SECRET\u00fc"}},
        {"headers": {"Authorization: SECRET": ""}},
        {"headers": "SECRET"},
        {"url": "http://user:SECRET@h/rcp"},
        {"url": "http://user:SECRET/@h/rcp"},
        {"url": "SECRET"},
        {"url": ["http://h?key=SECRET"]},
        {"url": "http://h:SECRET"},
        {"replicas": "SECRET"},
        {"replicas": ["http://user:SECRET@h/rcp"]},
        {"replicas": [12345]},
        {"command": "run --token SECRET"},
        {"zzz": "SECRET"},
    ],
)
def test_secrets_are_never_repeated(keys: dict[str, Any]) -> None:
    """Values that may be secrets do not come into a message, whatever is wrong with them."""
    for fault in _engine(**keys).values():
        assert "SECRET" not in str(fault)
        assert "12345" not in str(fault)


def test_no_word_of_pydantic_comes_through() -> None:
    """Messages are ours: no jargon, no addresses of its documentation."""
    found = _engine(id=7, weight="x", client="y", headers=[], tls=1, enabled="no", command=[], priority=1.5, zzz=1)
    text = "\n".join(map(str, found.values())).lower()
    for word in ("pydantic", "input", "instance", "model", "dictionary", "errors.", "extra", "validat"):
        assert word not in text
    assert found["engines[0].enabled"].suggestion == "write false"


@pytest.mark.parametrize(
    "found", ["issuer: i\njwks_url: https://i.example/k?key=SECRET", "{jwks_url: 'https://x?SECRET'}"]
)
def test_a_section_that_is_text_is_not_repeated(found: str) -> None:
    """Whatever was to stand in a section, or in a list, is in the text that stands in its place."""
    for wrong in ({"jwt": found}, {"jwt": {"algorithms": {"a": 1}, "roles": found}}):
        with pytest.raises(ValidationError) as error:
            GatewaySettings.model_validate(wrong)
        told = [str(fault) for fault in faults_of(error.value, GatewaySettings)]
        assert any("expected an object, found text" in line for line in told)
        assert "SECRET" not in str(told)


def test_the_error_reads_line_by_line() -> None:
    """The text names the file, then on a line each: path, message and suggestion."""
    error = SettingsError(
        "rcp.json", (FieldError("engines[2].timeoutMs", "is wrong", "write 5000"), FieldError("", "is empty"))
    )
    assert str(error).splitlines() == [
        "rcp.json: 2 faults",
        "  engines[2].timeoutMs: is wrong; write 5000",
        "  is empty",
    ]


def test_the_error_shows_where_in_an_incident() -> None:
    """The repr names file and paths."""
    assert repr(SettingsError("g.yaml", (FieldError("a.b", "x"),))) == "SettingsError('g.yaml', 1 fault: a.b)"


def test_paths_are_written_as_people_write_them() -> None:
    """List places stand in brackets, keys behind dots."""
    assert dotted(("engines", 2, "headers", "X-Api-Key")) == "engines[2].headers.X-Api-Key"
    assert dotted(()) == ""


def test_a_secret_pasted_as_a_key_is_cut() -> None:
    """A whole header line in the place of a name is shown up to where it stops to be a name."""
    assert dotted(("headers", "Authorization: Bearer abc")) == "headers.Authorization…"


def test_foreign_text_is_made_fit_for_a_line() -> None:
    """Control characters are replaced and long values cut."""
    assert shown("a\x1b[31m\nb") == "a�[31m�b"
    assert len(shown("x" * 500)) == 60
