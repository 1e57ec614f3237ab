"""When files are read again; what then becomes of requests and engines is shown in tests/gateway/test_reload.py."""

from pathlib import Path
from typing import Any

import pytest

from app.api import reload as room
from app.api.reload import MAX_LOOKS, Reload
from app.settings.field_errors import FieldError, SettingsError
from app.settings.file_watch import Watch
from tests.support.log_lines import own_log
from tests.support.running_gateway import made_state, until


class Restless(Watch):
    """Files of which a given number of looks finds each another than the one before."""

    def __init__(self, changes: float) -> None:
        self.looks = 0
        self.changes = changes
        super().__init__([Path("rcp.json")])
        self.looks = 0  # the first look is that of the start

    def changed(self) -> bool:
        self.looks += 1
        return self.looks <= self.changes


@pytest.fixture(autouse=True)
def _swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two looks."""
    monkeypatch.setattr(room, "QUIET_SECONDS", 0)


def faulty() -> Any:
    """Files that are read in vain, which is noticed all the same."""
    raise SettingsError("rcp.json", (FieldError("engines", "is missing"),))


@pytest.mark.parametrize(("changes", "reads_at", "warned"), [(4, 5, False), (float("inf"), MAX_LOOKS + 1, True)])
async def test_files_are_read_once_they_have_settled(changes: float, reads_at: int, warned: bool) -> None:
    """As soon as a look finds what the last one found; those that never settle are read as they are, and it is said."""
    looked: list[int] = []

    def load() -> Any:
        looked.append(watch.looks)
        return faulty()

    with own_log() as log:
        state = made_state([], {"server": {"reload_seconds": 0.001}})
        watch = Restless(changes)
        reload = Reload(state, load, watch)
        reload.start()
        await until(lambda: reload.failure is not None)
        await reload.stop()
        events = [line["event"] for line in log.lines]
    assert looked[0] == reads_at
    assert ("files_keep_changing" in events) is warned
    assert "reload_failed" in events
    assert repr(reload).startswith("<Reload ended <Watch rcp.json>, faulty: rcp.json")


async def test_unchanged_files_are_read_only_when_asked() -> None:
    """Looking is not reading; a SIGHUP is."""
    with own_log() as log:
        watch = Restless(0)
        reload = Reload(made_state([], {"server": {"reload_seconds": 0.001}}), faulty, watch)
        reload.start()
        await until(lambda: watch.looks > 3)
        assert log.lines == []
        reload.ask()
        await until(lambda: reload.failure is not None)
        await reload.stop()
