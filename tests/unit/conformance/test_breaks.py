"""Every rule that a server breaks is caught, by the check that is named for it and not by a traceback."""

from typing import Any

import pytest

from app.conformance.examination import CHECKS
from tests.support import broken_corners, broken_hits, broken_messages, broken_methods
from tests.support.breakable_server import BreakableServer
from tests.support.breaking import BREAKS, Break
from tests.support.broken_lines import LINE_BREAKS, STDIO_BREAKS
from tests.support.examined import examined, failed, passed

LISTED = (broken_messages, broken_hits, broken_methods, broken_corners)
"""Imported, they have listed their breaks."""

WHOLE = ("claim.level", "log.unasked")
"""Checks that judge what all others have brought to light."""


def title(spoil: Any) -> str:
    """A break as its test is called."""
    return spoil.__name__ if callable(spoil) else str(spoil)


@pytest.mark.parametrize(("check", "spoil"), BREAKS, ids=title)
async def test_a_break_is_caught(check: str, spoil: Break) -> None:
    """The check that is named fails, with a reason in words."""
    async with BreakableServer() as server:
        spoil(server)
        found = failed(await examined(server.url, *([] if check in WHOLE else [check])))
    assert check in found, found
    assert len(found[check]) > 15
    assert "cannot be made sense of" not in found[check]


async def test_the_whole_server_passes() -> None:
    """Unbroken, the server passes every check that a break is caught by, and all others, strictly."""
    async with BreakableServer() as server:
        report = await examined(server.url)
    assert failed(report) == {}
    assert (report.claimed, report.proved, report.admitted) == ("L2", "L2", True)
    assert {check for check, _ in BREAKS} - passed(report) == NOT_OFFERED


NOT_OFFERED = {"gating.missing", "filter.not-offered", "gating.funnel-rerank", "options.mmr", "handshake.version-min"}
NOT_OFFERED |= {"framing.compact"}
"""What the whole server has no occasion to show: it offers everything but these, and wants a handshake."""


def test_every_check_catches_something() -> None:
    """No check passes by being blind: each has a break that it catches, here or as a child process."""
    assert len(LISTED) == 4
    unbroken = {check.id for check in CHECKS if check.over != "stdio"} - {check for check, _ in BREAKS}
    assert unbroken == set()
    assert {check.id for check in CHECKS if check.over == "stdio"} == {*STDIO_BREAKS, *LINE_BREAKS} - {
        "handshake.required"
    }
