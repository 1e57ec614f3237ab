"""Texts of a certain form: what is taken, and that no message repeats what may be a secret."""

import pytest
from pydantic import TypeAdapter, ValidationError

from app.settings.fields import EngineId, EngineUrl, HeaderName, HeaderValue, Namespace


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (EngineId, "docs/v2.1_a-b", "-docs"),
        (Namespace, "docs", "do cs"),
        (HeaderName, "X-Key", "X Key"),
        (HeaderValue, "Bearer abc\tdef", "abc\r\nX: y"),
        (EngineUrl, "https://h:1/rcp?key=x", "https://u:SECRET@h"),
    ],
)
def test_forms(kind: type, good: str, bad: str) -> None:
    """A good text is taken as it is, a bad one refused in words that do not repeat it."""
    adapter: TypeAdapter[str] = TypeAdapter(kind)
    assert adapter.validate_python(good) == good
    with pytest.raises(ValidationError) as raised:
        adapter.validate_python(bad)
    assert bad not in raised.value.errors()[0]["msg"]
