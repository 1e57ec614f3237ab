"""A short run of random reloads in the suite; `python -m tests.chaos --reloads 100` makes more, with its own seed."""

from pathlib import Path

import pytest

from tests.chaos.reloads import CHANGES, Reloads


@pytest.mark.parametrize(("seed", "workers"), [(1, 1), (2, 1), (3, 2)])
async def test_a_change_of_the_registry_costs_no_answer(tmp_path: Path, seed: int, workers: int) -> None:
    """Under 16 callers, with engines that are well: no request fails, none is degraded or lacks an engine that was
    there before and after, and the gateway is ready all the time."""
    changes = len(CHANGES) + 10
    told = await Reloads(seed, tmp_path).run(changes, workers)
    assert len(told.changes) == changes
    assert {*told.changes} == {*CHANGES}
    assert told.probes > changes
