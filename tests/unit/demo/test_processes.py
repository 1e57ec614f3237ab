"""The processes of a demo, from start to end."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from app.demo.processes import DemoProcesses
from app.demo.staging import PROJECT
from tests.support.running_gateway import PATIENCE

SAYS = "print('ready', flush=True); "
SLEEPS = SAYS + "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS


class Ears:
    """Keeps what processes say, and lets a test wait for it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.news = threading.Condition()

    def __call__(self, name: str, line: str) -> None:
        with self.news:
            self.heard.append((name, line))
            self.news.notify_all()

    def wait_for(self, *words: tuple[str, str]) -> None:
        with self.news:
            assert self.news.wait_for(lambda: set(words) <= set(self.heard), PATIENCE), self.heard


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def processes(ears: Ears) -> Iterator[DemoProcesses]:
    """Processes that are stopped after the test."""
    started = DemoProcesses(ears, grace=0.2)
    yield started
    started.stop()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_everything_ends_with_stop(processes: DemoProcesses, ears: Ears) -> None:
    """SIGTERM ends a process, SIGKILL one that will not hear, and nothing is left of either."""
    polite, deaf = processes.start("polite", python(SLEEPS)), processes.start("deaf", python(DEAF))
    ears.wait_for(("polite", "ready"), ("deaf", "ready"))
    assert (polite.ended, deaf.ended) == (None, None)
    processes.stop()
    assert (polite.ended, deaf.ended) == (-15, -9)
    processes.stop()


def test_a_process_leads_a_group_of_its_own(processes: DemoProcesses, ears: Ears) -> None:
    """A Ctrl-C in the terminal reaches the demo alone, which then ends the others in order."""
    processes.start("leader", python("import os; print(os.getpgrp() == os.getpid(), flush=True)"))
    ears.wait_for(("leader", "True"))


def test_last_words_tell_why_it_ended(processes: DemoProcesses) -> None:
    """Both streams are heard and the last lines kept, with the exit code."""
    process = processes.start("talker", python("import sys; [print(n) for n in range(99)]; sys.exit('no more')"))
    assert process.wait(PATIENCE)
    process.release()
    assert process.ended == 1
    assert process.last_words.splitlines()[-2:] == ["98", "no more"]
    assert len(process.last_words.splitlines()) == 12


def test_an_incident_can_be_read(processes: DemoProcesses) -> None:
    """The state of every process is in the text of all."""
    assert repr(processes) == "DemoProcesses(none)"
    process = processes.start("short", python("raise SystemExit(3)"))
    assert process.wait(PATIENCE)
    assert "DemoProcess(short, pid " in repr(processes)
    assert "ended with 3" in repr(processes)


def test_no_such_program_is_raised(processes: DemoProcesses) -> None:
    """What cannot be started is an OSError and leaves nothing to stop."""
    with pytest.raises(OSError, match="nowhere"):
        processes.start("none", ["/nowhere/at/all"])
    assert processes.started == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's end")
def test_no_process_outlives_a_demo_that_is_killed() -> None:
    """The kernel ends what was started when whoever started it is killed by force: the pipe of the child closes."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    code = (
        "import subprocess, sys, time; from app.demo import processes; "
        f"process = subprocess.Popen({child}, close_fds=False, preexec_fn=processes.end_with_parent); "
        "print(process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(python(code), cwd=PROJECT, stdout=subprocess.PIPE, close_fds=False) as parent:
        os.close(writing)
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        parent.kill()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b""


def test_processes_are_tied_to_whoever_starts_them(processes: DemoProcesses, ears: Ears) -> None:
    """Each is started with the request to end with its parent."""
    if sys.platform != "linux":
        pytest.skip("only Linux has it")
    asks = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value, flush=True)"
    processes.start("child", python(asks))
    ears.wait_for(("child", str(int(signal.SIGTERM))))
