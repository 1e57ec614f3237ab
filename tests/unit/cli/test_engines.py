"""The table of engines."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

UP = {"id": "docs", "up": True, "version": "1.2", "capabilities": ["filter", "retrieve"], "latencyMs": 1.84}
DOWN = {"id": "code", "up": False, "version": None, "capabilities": [], "latencyMs": None, "reason": "connect: [red]x"}


def _serve(gateway: Any, *engines: Any) -> None:
    gateway.body = json.dumps({"engines": engines}).encode()


def test_the_table_has_a_row_per_engine(gateway: Any, run: Run) -> None:
    """Each engine with id, state, version, capabilities, latency; a reason only where there is one."""
    _serve(gateway, UP, DOWN)
    result = run("engines", "--url", gateway.url)
    assert result.exit_code == 0
    head, first, second = (line.split() for line in result.stdout.splitlines())
    assert head == ["id", "up", "version", "capabilities", "latency", "reason"]
    assert first == ["docs", "yes", "1.2", "filter,", "retrieve", "1.8", "ms"]
    assert second == ["code", "no", "-", "-", "connect:", "[red]x"]
    assert gateway.asked[0][:2] == ("GET", "/engines")


def test_without_faults_there_is_no_column_for_them(gateway: Any, run: Run) -> None:
    """When all engines are up the table stays narrow."""
    _serve(gateway, UP)
    assert "reason" not in run("engines", "--url", gateway.url).stdout


def test_no_engines_are_said(gateway: Any, run: Run) -> None:
    """A gateway without engines says so."""
    _serve(gateway)
    assert run("engines", "--url", gateway.url).stdout == "no engines\n"


def test_json_is_what_the_gateway_says(gateway: Any, run: Run) -> None:
    """`--json` prints the list for a program."""
    _serve(gateway, UP, DOWN)
    assert json.loads(run("engines", "--url", gateway.url, "--json").stdout) == {"engines": [UP, DOWN]}


def test_foreign_text_in_the_table_is_harmless(gateway: Any, run: Run) -> None:
    """What an engine calls itself is not obeyed by the terminal."""
    _serve(gateway, {**UP, "version": "\x1b[2J1", "capabilities": {"x-\x07": 1}})
    stdout = run("engines", "--url", gateway.url).stdout
    assert "\x1b" not in stdout
    assert "\x07" not in stdout


def test_another_service_is_told(gateway: Any, run: Run) -> None:
    """What has no list of engines is no gateway of this kind."""
    gateway.body = b'{"engines": 7}'
    result = run("engines", "--url", gateway.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "check the address" in result.stderr


def test_a_key_in_the_environment_is_sent(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that asks a gateway shows it the key of `RCP_GATEWAY_KEY`, and none where there is no key."""
    _serve(gateway, UP)
    run("engines", "--url", gateway.url)
    monkeypatch.setenv("RCP_GATEWAY_KEY", " rcpgw_abc/+=\n")
    run("engines", "--url", gateway.url)
    gateway.result(hits=[])
    run("query", "what", "--url", gateway.url)
    assert gateway.credentials == [None, "Bearer rcpgw_abc/+=", "Bearer rcpgw_abc/+="]


def test_a_key_that_is_none_is_told_and_not_repeated(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be a key never leaves, and never comes out on the terminal."""
    monkeypatch.setenv("RCP_GATEWAY_KEY", "Bearer sécret")
    result = run("engines", "--url", gateway.url)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: RCP_GATEWAY_KEY holds no valid key")
    assert "cret" not in result.stderr
    assert gateway.asked == []


def test_a_gateway_that_wants_a_key_is_told_with_the_remedy(
    gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is turned away without a key learns where to put it; who is with one learns only why."""
    gateway.status = 401
    gateway.error(-32012, "a credential is needed")
    told = "error: a credential is needed (code -32012)\n"
    assert run("engines", "--url", gateway.url).stderr == f"{told}  set RCP_GATEWAY_KEY to a key of a tenant\n"
    assert run("query", "x", "--url", gateway.url).stderr == f"{told}  set RCP_GATEWAY_KEY to a key of a tenant\n"
    monkeypatch.setenv("RCP_GATEWAY_KEY", "wrong")
    assert run("engines", "--url", gateway.url).stderr == told


def test_watch_prints_again_until_interrupted(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refresh shows the current list; a failure after the first is shown, and the gateway asked again."""
    _serve(gateway, UP)
    bodies = iter([b"nonsense", gateway.body])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        gateway.body = next(bodies, None)
        if gateway.body is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    result = run("engines", "--url", gateway.url, "--watch", "--interval", "0.5")
    assert result.exit_code == 130
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in (lines[1], lines[-1])] == ["docs", "docs"]
    assert sum("HTTP 200" in line for line in lines) == 1


def test_watch_as_json_is_a_line_for_each_refresh(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs."""
    _serve(gateway, UP)
    left = iter([True, False])

    def sleep(_: float) -> None:
        if not next(left):
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    result = run("engines", "--url", gateway.url, "--watch", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"engines": [UP]}] * 2


def test_watch_ends_if_nobody_answers_at_first(run: Run) -> None:
    """A wrong address is an error, not a display that waits."""
    assert run("engines", "--url", "http://127.0.0.1:1", "--watch").exit_code == 1
