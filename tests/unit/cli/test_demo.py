"""The demo command: what it starts, what it asks, and what it says when it cannot."""

import signal
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from app.cli import demo
from app.demo.staging import ENGINES

Run = Callable[..., Result]
HIT = {"id": "list.sort", "score": 0.5, "text": "Sort the list.", "meta": {"engine": "stdlib"}}


def stand_in(gateway: Any, engines: tuple[str, ...] = ENGINES) -> str:
    """Make the fake gateway answer both questions, and give its port."""
    gateway.result(hits=[HIT])
    both = b'"engines": [' + b",".join(b'{"id": "%s", "up": true}' % name.encode() for name in engines) + b"], "
    gateway.body = gateway.body.replace(b"{", b"{" + both, 1)
    return gateway.url.rpartition(":")[2]


def test_a_running_demo_is_asked(gateway: Any, run: Run) -> None:
    """With the demo in another terminal the command asks that one, all words as one question, and leaves."""
    result = run("demo", "--port", stand_in(gateway), "-k", 3, "how", "to", "sort")
    assert result.exit_code == 0
    assert gateway.asked[-1][2]["params"] == {"query": "how to sort", "k": 3}
    assert "list.sort" in result.stdout
    assert "is running at" in result.stderr


def test_a_gateway_with_other_engines_is_not_asked(gateway: Any, run: Run) -> None:
    """A gateway of the user's own keeps its port and its peace."""
    result = run("demo", "--port", stand_in(gateway, ("docs",)), "q")
    assert result.exit_code == 1
    assert "taken by a gateway with other engines; choose another with: rcp-gateway demo --port" in result.stderr


def test_another_program_on_the_port_is_told(gateway: Any, run: Run) -> None:
    """Something else listens: one line with the remedy."""
    gateway.body = b"<html>"
    result = run("demo", "--port", gateway.url.rpartition(":")[2])
    assert result.exit_code == 1
    assert "is taken by another program; choose another with: rcp-gateway demo --port 8090" in result.stderr


def test_a_port_that_may_not_be_used_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the system is told in its words, with the remedy."""

    def refuse(port: int) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(demo, "is_taken", refuse)
    result = run("demo", "--port", 80)
    assert result.exit_code == 1
    assert "port 80 cannot be used (Permission denied); choose another with" in result.stderr


def test_a_missing_extra_is_told_before_anything_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK or scikit-learn the command says which extra to install."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "sklearn" else find_spec(name))
    result = run("demo", "--port", 0)
    assert result.exit_code == 1
    assert "pip install '.[demo]'" in result.stderr


class Troupe:
    """Processes that only pretend: what was started, and whether it was stopped."""

    def __init__(self, heard: Callable[[str, str], None], ended: dict[str, int]) -> None:
        self.started: list[Any] = []
        self.stopped = threading.Event()
        self._heard = heard
        self._ended = ended

    def start(self, name: str, command: list[str]) -> None:
        self._heard(name, f"{name}: a line")
        player = type("Player", (), {"name": name, "ended": self._ended.get(name), "last_words": "alas"})
        self.started.append(player)

    def stop(self) -> None:
        self.stopped.set()


@pytest.fixture
def stage(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A demo whose processes only pretend and whose gateway is the fake one; nothing waits."""
    kept: dict[str, Any] = {"ended": {}}
    port = int(stand_in(gateway))

    def made(heard: Callable[[str, str], None]) -> Troupe:
        kept["troupe"] = Troupe(heard, kept["ended"])
        return kept["troupe"]

    monkeypatch.setattr(demo, "DemoProcesses", made)
    monkeypatch.setattr(demo, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(demo, "is_taken", lambda port: False)
    kept["port"] = port
    yield kept
    assert kept["troupe"].stopped.is_set(), "something was left running"


def test_the_whole_play(run: Run, stage: dict[str, Any]) -> None:
    """Engines and gateway are started, awaited, asked the sample, and stopped; progress goes to stderr."""
    result = run("demo", "--port", stage["port"], "--no-serve")
    assert result.exit_code == 0, result.stderr
    assert [player.name for player in stage["troupe"].started] == ["stdlib", "concepts", "gateway"]
    assert result.stdout.split()[:6] == [*demo.SAMPLE.split()]
    assert "list.sort" in result.stdout
    for name in ENGINES:
        assert f"{name} is up after" in result.stderr
    assert "stdlib: a line" in result.stderr
    assert "gateway: a line" not in result.stderr
    assert "Ctrl-C" not in result.stderr


def test_it_serves_until_it_is_interrupted(run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to ask more, tells of an engine that ends meanwhile, and ends with 0 on Ctrl-C."""
    naps = iter(range(100))

    def nap(_seconds: float) -> None:
        turn = next(naps)
        if turn == 2:
            stage["troupe"].started[0].ended = 1
        if turn == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(demo.time, "sleep", nap)
    result = run("demo", "--port", stage["port"], "q")
    assert result.exit_code == 0, result.stderr
    assert f'make demo ARGS="--port {stage["port"]} ' in result.stderr
    assert f"--url http://127.0.0.1:{stage['port']}" in result.stderr
    assert "stdlib has ended; the gateway continues without it" in result.stderr
    assert result.stderr.rstrip().endswith("stopping")


@pytest.mark.parametrize("name", ["stdlib", "gateway"])
def test_a_process_that_dies_early_is_told(run: Run, stage: dict[str, Any], name: str) -> None:
    """Its exit code and last words, and nothing is left running."""
    stage["ended"][name] = 7
    result = run("demo", "--port", stage["port"])
    assert result.exit_code == 1
    assert f"{name} ended with 7; last output:" in result.stderr
    assert "alas" in result.stderr


def test_a_gateway_that_dies_later_is_told(run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the gateway there is nothing to serve."""
    naps = iter(range(100))

    def nap(_seconds: float) -> None:
        if next(naps) == 2:
            stage["troupe"].started[-1].ended = -9

    monkeypatch.setattr(demo.time, "sleep", nap)
    result = run("demo", "--port", stage["port"])
    assert result.exit_code == 1
    assert "gateway ended with -9" in result.stderr


def test_an_engine_that_never_comes_is_told(
    gateway: Any, run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the longest wait it names who is missing."""
    stand_in(gateway, ("stdlib", "packages"))
    monkeypatch.setattr(demo, "READY_SECONDS", 0.0)
    result = run("demo", "--port", stage["port"])
    assert result.exit_code == 1
    assert "after 0 s still not up: concepts, packages, stdlib" in result.stderr


def test_nothing_is_left_in_the_temporary_folder(
    run: Run, stage: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registry and settings go with the demo."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run("demo", "--port", stage["port"], "--no-serve").exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_still_starts_is_waited_for(gateway: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that were never up are waited for with a word, and the question is asked when they are."""
    port = stand_in(gateway)
    up = gateway.body
    gateway.body = up.replace(b'"concepts", "up": true', b'"concepts", "up": false, "version": null')

    def nap(_seconds: float) -> None:
        gateway.body = up

    monkeypatch.setattr(demo.time, "sleep", nap)
    result = run("demo", "--port", port, "q")
    assert result.exit_code == 0, result.stderr
    assert "waiting for concepts, still starting" in result.stderr
    assert "concepts is up after" in result.stderr
    assert [path for _, path, _ in gateway.asked][-1] == "/rcp/retrieve"


def test_a_running_demo_that_lost_an_engine_is_asked_at_once(gateway: Any, run: Run) -> None:
    """An engine that was up once and is down now is not waited for."""
    port = stand_in(gateway)
    gateway.body = gateway.body.replace(b'"concepts", "up": true', b'"concepts", "up": false, "version": "1"')
    result = run("demo", "--port", port, "q")
    assert result.exit_code == 0
    assert "waiting" not in result.stderr


def test_a_reader_that_leaves_ends_it(run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once nobody reads what it says, it serves no longer; everything is stopped."""
    naps = iter(range(100))
    monkeypatch.setattr(demo.time, "sleep", lambda _seconds: next(naps))
    monkeypatch.setattr(demo, "abandoned", lambda: next(naps) > 20)
    result = run("demo", "--port", stage["port"], "q")
    assert result.exit_code == 1
    assert "error" not in result.stderr
    assert next(naps) < 100


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_it_ends_by_signals(
    run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A closed terminal ends it as Ctrl-C does, and the handlers of before are back."""
    before = signal.getsignal(number)
    naps = iter(range(100))
    monkeypatch.setattr(demo.time, "sleep", lambda _seconds: signal.raise_signal(number) if next(naps) == 3 else None)
    result = run("demo", "--port", stage["port"], "q")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.rstrip().endswith("stopping")
    assert signal.getsignal(number) == before


def test_a_demo_that_was_quicker_is_asked(run: Run, stage: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two demos started at once the one that lost the port ends what it started and asks the other."""
    looks = iter([False])
    monkeypatch.setattr(demo, "is_taken", lambda port: next(looks, True))
    stage["ended"]["gateway"] = 1
    result = run("demo", "--port", stage["port"], "q")
    assert result.exit_code == 0, result.stderr
    assert stage["troupe"].stopped.is_set()
    assert "is running at" in result.stderr
    assert "list.sort" in result.stdout
