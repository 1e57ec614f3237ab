"""The conformance suite of the MCP project in both eras: everything passes but what does not apply here."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.listening_gateway import listening
from tests.support.mcp_peer import MODERN
from tests.support.node_tools import BIN, needs, run
from tests.support.running_gateway import entry
from tests.support.scripted_engine import ScriptedEngine, hits

EXPECTED = Path(__file__).parent / "mcp_expected_failures.yaml"

pytestmark = needs("@modelcontextprotocol/conformance")


def expected() -> dict[str, set[str]]:
    """Scenario -> the checks in it that do not apply."""
    listed = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))
    return {scenario: set(checks) for scenario, checks in listed.items()}


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_only_what_does_not_apply_fails(tmp_path: Path, version: str) -> None:
    """Each failed check is listed with its reason, and each listed check of a scenario that was run fails."""
    engine = await ScriptedEngine(results=hits("a", "b")).start()
    try:
        async with listening([entry("docs", engine)]) as (_, port):
            _, out, err = await run(
                str(BIN / "conformance"),
                *("server", "--url", f"http://localhost:{port}/mcp", "--suite", "all"),
                *("--spec-version", version, "-o", str(tmp_path)),
            )
    finally:
        await engine.stop()
    found: dict[str, set[str]] = {}
    passed = 0
    for checks in tmp_path.glob("*/checks.json"):
        scenario = re.sub(r"^server-(.+?)-\d{4}-\d\d-\d\dT.*", r"\1", checks.parent.name)
        results = json.loads(checks.read_text(encoding="utf-8"))
        found[scenario] = {check["id"] for check in results if check["status"] in ("FAILURE", "WARNING")}
        passed += sum(check["status"] == "SUCCESS" for check in results)
    assert passed > 30, (out, err)
    listed = expected()
    assert {name: new for name, failed in found.items() if (new := failed - listed.get(name, set()))} == {}
    assert {name: old for name, failed in found.items() if (old := listed.get(name, set()) - failed)} == {}
