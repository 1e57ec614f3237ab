"""The line in which a starting gateway says by which settings it goes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SECRET = "5ecret-5ecret"
SCRIPT = "import sys; print(sys.argv, file=sys.stderr)"


def test_effective_settings_are_logged_without_secrets(tmp_path: Path) -> None:
    """Defaults and overrides are there; no header value, no value of a query and no argument of a program is, also
    where that program says itself what it was told."""
    engines = [
        {"id": "web", "weight": 0, "url": f"http://127.0.0.1:1/rcp?key={SECRET}", "headers": {"X-Key": "${TEST_KEY}"}},
        {
            "id": "child",
            "weight": 0,
            "command": [sys.executable, "-c", "import sys; print(sys.argv, file=sys.stderr)", SECRET],
        },
    ]
    registry = tmp_path / "rcp.json"
    registry.write_text(json.dumps({"engines": engines}))
    environment = os.environ | {
        "TEST_KEY": SECRET,
        "RCP_GATEWAY__RETRIEVE__MAX_K": "77",
        "RCP_GATEWAY__TRACES__ENDPOINT": f"http://127.0.0.1:1/v1/traces?key={SECRET}",
    }
    command = [sys.executable, "-m", "app", "serve", "--registry", str(registry), "--port", "0"]
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    seen: set[str] = set()
    try:
        for line in process.stderr:
            lines.append(line)
            seen.add(json.loads(line)["event"])
            if seen >= {"started", "engine_stderr"}:
                break
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert SECRET not in "".join(lines) + rest
    (said,) = (entry for entry in map(json.loads, lines) if entry["event"] == "settings")
    assert said["level"] == "info"
    (warned,) = (entry for entry in map(json.loads, lines) if entry["event"] == "config_warning")
    assert (warned["level"], "every enabled engine has weight 0" in warned["warning"]) == ("warning", True)
    assert (said["gateway"]["retrieve"]["max_k"], said["gateway"]["fusion"]["rrf_k"]) == (77, 60)
    assert "***" in next(line for line in lines if json.loads(line)["event"] == "engine_stderr")
    web, child = said["registry"]["engines"]
    assert (web["url"], web["headers"]) == ("http://127.0.0.1:1/rcp?key=***", {"X-Key": "***"})
    assert said["gateway"]["traces"]["endpoint"] == "http://127.0.0.1:1/v1/traces?key=***"
    assert child["command"] == [sys.executable, "***", "***", "***"]
