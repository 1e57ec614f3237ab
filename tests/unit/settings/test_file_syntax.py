"""Text made plain values: what is well-formed, and where exactly it is not."""

from pathlib import Path
from typing import Any

import pytest

from app.settings.field_errors import FieldError, SettingsError
from app.settings.file_syntax import plain, read_json, read_text, read_yaml


def _only_fault(error: pytest.ExceptionInfo[SettingsError]) -> FieldError:
    assert len(error.value.faults) == 1
    return error.value.faults[0]


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    """A misspelt file name is answered with the file that was meant."""
    (tmp_path / "rcp.json").write_text("{}")
    with pytest.raises(SettingsError, match="no such file") as error:
        read_text(tmp_path / "rpc.json")
    assert "rcp.json" in (_only_fault(error).suggestion or "")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """When not even the directory is there, that is what is said."""
    with pytest.raises(SettingsError, match="no directory"):
        read_text(tmp_path / "nowhere" / "rcp.json")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """A directory in the place of the file is said to be one."""
    with pytest.raises(SettingsError, match="is a directory"):
        read_text(tmp_path)


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    """What the operating system says is passed on, without a traceback."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_text(tmp_path / "loop")


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused with the byte where it stops to be."""
    (tmp_path / "f").write_bytes(b"name: M\xfcller")
    with pytest.raises(SettingsError, match=r"not UTF-8 text \(byte 7\)"):
        read_text(tmp_path / "f")


@pytest.mark.parametrize(
    ("text", "where", "advice"),
    [
        ('{"engines": [1,]}', "line 1, column 16", "comma"),
        ('{\n  "a": 1,\n  // why\n}', "line 3, column 3", "no comments"),
        ("{'a': 1}", "line 1, column 2", "double quotes"),
        ("", "line 1, column 1", "empty"),
        ("\ufeff{}", "line 1, column 1", "byte order mark"),
        ('{"a": 1} x', "line 1, column 10", ""),
    ],
)
def test_broken_json_is_located(text: str, where: str, advice: str) -> None:
    """Broken JSON is answered with line, column and, where it is a usual slip, the remedy."""
    with pytest.raises(SettingsError) as error:
        read_json("rcp.json", text)
    fault = _only_fault(error)
    assert fault.path in (where, "line 1, column 15")  # the place of a trailing comma differs between Pythons
    assert advice in (fault.suggestion or "") or "comma" in fault.message


def test_every_doubled_json_key_has_its_path() -> None:
    """A key that duplicate key in an object is a fault, however deep, and all of them are told."""
    with pytest.raises(SettingsError) as error:
        read_json("rcp.json", '{"engines": [{"id": "a", "id": "b"}, {"tls": {"caFile": "x", "caFile": "x"}}]}')
    assert [fault.path for fault in error.value.faults] == ["engines[0].id", "engines[1].tls.caFile"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_json_without_end_is_refused(number: str) -> None:
    """NaN and the infinities are refused with their path; they are no JSON."""
    with pytest.raises(SettingsError, match="is not JSON") as error:
        read_json("rcp.json", f'{{"engines": [{{"weight": {number}}}]}}')
    assert _only_fault(error).path == "engines[0].weight"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 900 + "NaN" + "}" * 900, "1" * 5000])
def test_monstrous_json_is_a_fault(text: str) -> None:
    """Nesting and numbers without measure are faults of the file, not of the program."""
    with pytest.raises(SettingsError):
        read_json("rcp.json", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: 1", {"a": 1}),
        ("a: '1'", {"a": "1"}),
        ("a: [1, 2.5, x, true, ~]", {"a": [1, 2.5, "x", True, None]}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_yaml_is_read(text: str, value: Any) -> None:
    """The usual forms of YAML mean what they say."""
    assert read_yaml("gateway.yaml", text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("010", "010"),
        ("08080", "08080"),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        (".inf", ".inf"),
        ("8080", 8080),
        ("-3", -3),
        ("1e3", 1000.0),
        ("2.0", 2.0),
        ("true", True),
        ("False", False),
        ("null", None),
    ],
)
def test_plain_scalars_hold_no_surprise(text: str, value: Any) -> None:
    """What YAML 1.1 would silently turn into something else stays text: a fault where a number is due."""
    assert plain(text) == value
    assert type(plain(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: b: c", "line 1, column 5", "mapping values"),
        ("a:\n\tb: 1", "line 2, column 1", "cannot start"),
        ("a: 'open", "line 1, column 9", "end of stream"),
        ("--- 1\n--- 2", "line 2, column 1", "another document"),
        ("a: *nobody", "line 1, column 4", "undefined alias"),
    ],
)
def test_broken_yaml_is_located(text: str, where: str, message: str) -> None:
    """Broken YAML is answered with line and column."""
    with pytest.raises(SettingsError, match=message) as error:
        read_yaml("gateway.yaml", text)
    assert _only_fault(error).path == where


@pytest.mark.parametrize(
    "text", ["a: \x07", "a: &x [*x]", "a: !env PORT", "a: !!python/name:os.system x", "? [a]\n: 1"]
)
def test_strange_yaml_is_a_fault(text: str) -> None:
    """Control characters, files that contain themselves, tags and keys that are no words are faults."""
    with pytest.raises(SettingsError):
        read_yaml("gateway.yaml", text)


def test_every_doubled_yaml_key_has_path_and_lines() -> None:
    """A key that duplicate key is a fault with both lines, and all of them are told."""
    with pytest.raises(SettingsError) as error:
        read_yaml("gateway.yaml", "server:\n  port: 1\n  port: 2\nlog: {level: info, level: info}\nserver: {}\n")
    told = [(fault.path, fault.message) for fault in error.value.faults]
    assert told == [
        ("server.port", "duplicate key (lines 2 and 3)"),
        ("log.level", "duplicate key (lines 4 and 4)"),
        ("server", "duplicate key (lines 1 and 5)"),
    ]
