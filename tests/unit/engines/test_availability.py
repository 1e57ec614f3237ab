"""Up or down: by the last thing an engine did, told at once when it is news, and not with every flap."""

import asyncio

from app.engines.policies import QUIET_SECONDS, Availability
from app.protocol.errors import BadStatus, LegError
from tests.support.virtual_time import virtually


def test_it_is_down_until_it_does_something_right() -> None:
    """Before anything it is down for want of a handshake."""
    standing = Availability(lambda fault: None)
    assert repr(standing) == "<Availability down, connect: no handshake yet>"
    standing.fault = None
    assert repr(standing) == "<Availability up>"


def test_changes_are_told() -> None:
    """The first check tells how it is; from then on traffic tells of each change, once."""

    async def story() -> list[str]:
        told: list[str] = []

        def hear(fault: LegError | None) -> None:
            told.append("up" if fault is None else fault.kind)

        standing = Availability(hear)
        standing.mark_up()
        assert told == []
        standing.report()
        await asyncio.sleep(QUIET_SECONDS)
        standing.mark_down(BadStatus("503"))
        standing.mark_down(BadStatus("503"))
        standing.report()
        await asyncio.sleep(QUIET_SECONDS)
        standing.mark_up()
        return told

    assert virtually(story()) == ["up", "http_status", "up"]


def test_flapping_is_told_once_and_settled_by_the_next_check() -> None:
    """Changes that follow fast on one another are not each told, but the last one never stays untold."""

    async def story() -> list[str]:
        told: list[str] = []
        standing = Availability(lambda fault: told.append("up" if fault is None else fault.kind))
        standing.mark_up()
        standing.report()
        await asyncio.sleep(QUIET_SECONDS)
        for _ in range(100):
            standing.mark_down(BadStatus("503"))
            standing.mark_up()
        assert told == ["up", "http_status"]
        standing.report()
        return told

    assert virtually(story()) == ["up", "http_status", "up"]
