"""The bench of large federations measures every operation of a real gateway."""

import json
import subprocess
import sys

import pytest

from bench import rig


@pytest.mark.skipif(sys.platform != "linux", reason="the bench reads CPU time from a Linux kernel")
def test_every_operation_is_measured() -> None:
    """Three engines are enough to see that each answers, and that a reload happens."""
    command = [sys.executable, "-m", "bench.many_engines", "--engines", "3", "--json"]
    done = subprocess.run(command, cwd=rig.PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["3"]
    assert {"start", "reload", "scrape", "info", "catalog/list", "/admin/engines", "/admin/overlap"} <= rows.keys()
    assert all(row["cpu_ms"] >= 0 for row in rows.values())
    assert all(row["bytes"] > 0 for name, row in rows.items() if name != "start")
