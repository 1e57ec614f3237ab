"""How faults read."""

from app.settings.field_errors import FieldError, SettingsError, dotted, shown


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
