"""What changed between two advertisements, in bounded words."""

from app.engines.call_instrumentation import MAX_CHANGES, difference
from app.protocol.advertisement import read_advertisement
from tests.support.fake_engine import advertised, described


def test_nothing_changed() -> None:
    """The same said twice is no difference."""
    assert difference(advertised(), advertised()) == {}


def test_what_was_added_removed_and_changed() -> None:
    """Capabilities and their fields are named, old and new values with them, and so is the server."""
    before = read_advertisement(described({"retrieve": {"maxK": 100, "mmr": True}, "embed": {"dimension": 3}}))
    after = read_advertisement(
        {**described({"retrieve": {"maxK": 7}, "graph": {}}), "server": {"name": "fake", "version": "2.0"}}
    )
    assert difference(before, after) == {
        "server": "fake 1.0 -> fake 2.0",
        "added": ["graph"],
        "removed": ["embed", "embed.dimension", "retrieve.mmr"],
        "changed": ["retrieve.maxK: 100 -> 7"],
    }


def test_it_is_bounded() -> None:
    """However much an engine says, and however deep, a few short lines are what is told."""
    deep: list[object] = []
    for _ in range(990):
        deep = [deep]
    told = difference(
        advertised({}), advertised({f"x-{number}": "v" * 10_000 for number in range(1000)} | {"x-deep": {"d": deep}})
    )
    assert len(told["added"]) == MAX_CHANGES
    changed = difference(advertised({"x": "a" * 10_000}), advertised({"x": "b\n" * 5_000}))
    (line,) = changed["changed"]
    assert len(line) <= 300
    assert "\n" not in line
