"""What the environment overrides, and how secrets reach header values."""

from typing import Any

import pytest

from app.settings.environment import apply, fill_headers, read_overrides, stray_references
from app.settings.schema import GatewaySettings


def test_numbers_are_numbers_and_texts_stay_texts() -> None:
    """A value is read as YAML, but for a setting that is a text it is taken as it stands."""
    found = read_overrides(
        {
            "RCP_GATEWAY__SERVER__PORT": "9090",
            "RCP_GATEWAY__SERVER__NAME": "42",
            "RCP_GATEWAY__SERVER__ID": "no",
            "RCP_GATEWAY__RETRIEVE__OVERFETCH": "1.5",
            "RCP_GATEWAY__LOG__LEVEL": "debug",
            "RCP_GATEWAY_DEBUG": "1",
            "PATH": "/bin",
        },
        GatewaySettings,
    )
    assert found.faults == []
    assert found.values == {
        ("server", "port"): 9090,
        ("server", "name"): "42",
        ("server", "id"): "no",
        ("retrieve", "overfetch"): 1.5,
        ("log", "level"): "debug",
    }
    assert found.origins[("server", "port")] == "RCP_GATEWAY__SERVER__PORT"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("RCP_GATEWAY__RETRIEVE__WINDW_MIN", "did you mean RCP_GATEWAY__RETRIEVE__WINDOW_MIN?"),
        ("RCP_GATEWAY__SERVR__PORT", "did you mean RCP_GATEWAY__SERVER__PORT?"),
        ("RCP_GATEWAY__SERVER", None),
        ("RCP_GATEWAY__SERVER__PORT__X", None),
        ("RCP_GATEWAY__", "the form is RCP_GATEWAY__SECTION__KEY"),
    ],
)
def test_an_unknown_variable_is_a_fault(name: str, suggestion: str | None) -> None:
    """A variable of ours that sets nothing is a fault that names what was meant, and never its value."""
    found = read_overrides({name: "SECRET"}, GatewaySettings)
    assert [fault.path for fault in found.faults] == [name]
    assert found.values == {}
    assert "SECRET" not in str(found.faults[0])
    if suggestion:
        assert found.faults[0].suggestion == suggestion


def test_overrides_win_over_the_file() -> None:
    """An override replaces one key and leaves its neighbours."""
    document: dict[str, Any] = {"server": {"port": 1, "name": "a"}}
    environ = {"RCP_GATEWAY__SERVER__PORT": "2", "RCP_GATEWAY__LOG__LEVEL": "error"}
    apply(read_overrides(environ, GatewaySettings), document)
    assert document == {"server": {"port": 2, "name": "a"}, "log": {"level": "error"}}


def test_a_section_that_is_none_is_left_alone() -> None:
    """Where the file has a value in place of a section, the override leaves it for validation to see."""
    document: dict[str, Any] = {"server": 7}
    apply(read_overrides({"RCP_GATEWAY__SERVER__PORT": "2"}, GatewaySettings), document)
    assert document == {"server": 7}


def _headers(value: Any) -> dict[str, Any]:
    return {"engines": [{"id": "a", "headers": {"X": value}}]}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("Bearer ${TOKEN}", "Bearer s3cret"),
        ("${TOKEN}${TOKEN}", "s3crets3cret"),
        ("5$ and $TOKEN and $$", "5$ and $TOKEN and $$"),
        ("${NESTED}", "${TOKEN}"),
        ("plain", "plain"),
    ],
)
def test_references_are_replaced_once(written: str, sent: str) -> None:
    """`${NAME}` becomes the variable's value, which is not looked into again; a plain `$` stays."""
    original = _headers(written)
    filled, faults = fill_headers(original, {"TOKEN": "s3cret", "NESTED": "${TOKEN}"})
    assert faults == []
    assert filled["engines"][0]["headers"]["X"] == sent
    assert original == _headers(written)


def test_an_unset_or_empty_variable_is_named_with_its_header() -> None:
    """The fault names the variable and the path of the header that wants it."""
    _, faults = fill_headers(_headers("${TOKEN} ${OTHER}"), {"OTHER": ""})
    assert [(fault.path, fault.message) for fault in faults] == [
        ("engines[0].headers.X", "the environment variable TOKEN is not set"),
        ("engines[0].headers.X", "the environment variable OTHER is empty"),
    ]


@pytest.mark.parametrize("value", ["abc\n", "\tabc\r\n", " abc "])
def test_white_space_around_a_value_is_left_out(value: str) -> None:
    """Secrets from files, or from `echo`, end in a newline."""
    filled, faults = fill_headers(_headers("Bearer ${TOKEN}"), {"TOKEN": value})
    assert faults == []
    assert filled["engines"][0]["headers"]["X"] == "Bearer abc"
    name = "RCP_GATEWAY__SERVER__NAME"
    assert read_overrides({name: value}, GatewaySettings).values == {("server", "name"): "abc"}


@pytest.mark.parametrize("value", ["s3\ncret", "s3\x00cret", "s3\x7fcret\n"])
def test_a_control_character_within_a_value_is_named_with_its_remedy(value: str) -> None:
    """Never with the value."""
    (fault,) = fill_headers(_headers("${TOKEN}"), {"TOKEN": value})[1]
    assert "TOKEN contains a control character" in str(fault)
    assert "set TOKEN to one line" in str(fault)
    assert "s3" not in str(fault)


def test_a_variable_of_white_space_is_empty() -> None:
    """As one of nothing."""
    (fault,) = fill_headers(_headers("${TOKEN}"), {"TOKEN": " \n"})[1]
    assert fault.message == "the environment variable TOKEN is empty"


@pytest.mark.parametrize("written", ["${SECRET-1}", "${SECRET", "${}", "${ SECRET }"])
def test_a_broken_reference_is_a_fault_without_its_text(written: str) -> None:
    """What looks like a reference and is none is a fault that does not repeat what stands there."""
    _, faults = fill_headers(_headers(written), {})
    assert len(faults) == 1
    assert "SECRET" not in str(faults[0])


@pytest.mark.parametrize("document", [None, [], {"engines": 7}, {"engines": [7, {"headers": 7}, {}]}, _headers(7)])
def test_other_shapes_are_left_to_validation(document: Any) -> None:
    """A document of the wrong shape passes through unchanged."""
    assert fill_headers(document, {}) == (document, [])


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"url": "http://${HOST}/rcp"}, "engines[0].url"),
        ({"command": ["prog", "--key", "${KEY}"]}, "engines[0].command[2]"),
        ({"tls": {"caFile": "${CA}"}}, "engines[0].tls.caFile"),
        ({"idNamespace": "${NS}"}, "engines[0].idNamespace"),
    ],
)
def test_a_reference_outside_header_values_is_a_fault(entry: dict[str, Any], path: str) -> None:
    """Where `${NAME}` would stay as it is, the fault says so and what to write instead."""
    (fault,) = stray_references({"engines": [entry]})
    assert fault.path == path
    assert "is not replaced here, only in header values; write the value itself" in str(fault)
    assert ("leave it to a shell" in str(fault)) == ("command" in entry)


@pytest.mark.parametrize(
    "document",
    [
        _headers("${TOKEN}"),
        {"engines": [{"command": ["sh", "-c", "exec prog ${KEY}"]}]},
        {"engines": [{"url": "http://h/$X", "weight": 1}, 7]},
        {"engines": "${X}"},
        [],
    ],
)
def test_other_references_are_left_alone(document: Any) -> None:
    """Header values, a shell's own script and a plain `$` are no faults, and other shapes are validation's."""
    assert stray_references(document) == []
