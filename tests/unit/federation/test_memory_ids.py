"""Names of memories: there and back, and what was altered."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.federation.methods.memory import MAX_MEMORY_ID, PREFIX, MemoryRef, memory_id_of, read_memory_id
from app.protocol.errors import NotFound

ENGINES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,20}", fullmatch=True)


@settings(deadline=None)
@given(ENGINES, st.text(min_size=1, max_size=200))
def test_there_and_back(engine: str, own: str) -> None:
    """Whatever an engine calls its memory, half a surrogate pair included."""
    memory = MemoryRef(engine, own)
    name = memory_id_of(memory)
    assert read_memory_id(name) == memory
    assert memory_id_of(memory) == name
    assert name.isascii()


@settings(deadline=None)
@given(ENGINES, st.text(min_size=1, max_size=20), st.data())
def test_an_altered_name_is_none(engine: str, own: str, data: st.DataObject) -> None:
    """One letter exchanged, taken away or added."""
    name = memory_id_of(MemoryRef(engine, own))
    place = data.draw(st.integers(0, len(name) - 1))
    engine_request = data.draw(st.sampled_from("ABCDEFabcdef0123_-.=é"))
    changed = data.draw(
        st.sampled_from([name[:place] + engine_request + name[place + 1 :], name[:place] + name[place + 1 :]])
    )
    if changed == name:
        changed = name + engine_request
    with pytest.raises(NotFound) as error:
        read_memory_id(changed)
    assert error.value.data["field"] == "memoryId"


@pytest.mark.parametrize("name", ["", "m", PREFIX, PREFIX + "A" * MAX_MEMORY_ID, PREFIX + "AAAAAAAAAAAAYQ"])
def test_words_that_are_no_names(name: str) -> None:
    """Too long, too short, or without an engine."""
    with pytest.raises(NotFound):
        read_memory_id(name)
